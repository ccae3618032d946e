#!/usr/bin/env bash
# Fetches the Kyoto Free Translation Task 1.0 (Japanese-English): training, tune, dev and test, as text and as tokens.
#
#   bash scripts/download_kftt.sh [--output data/kftt] [--from FOLDER | --mirror URL] [--checksums FILE]
#   onmt_entmax prepare translation --corpus kftt --direction ja-en --data data/kftt --output runs/ja-en/data
SCRIPT=download_kftt.sh
WHAT="The Kyoto Free Translation Task 1.0 (Neubig 2011)."
LICENCE="Creative Commons BY-SA 3.0 (NICT's Japanese-English bilingual corpus of Wikipedia's Kyoto articles)."
BASES=http://www.phontron.com/kftt/download
OUTPUT=data/kftt
. "$(dirname "${BASH_SOURCE[0]}")/download.sh"
options "$@"

archive "$BASES" kftt-data-1.0.tar.gz ""
files=()
for language in ja en; do
  files+=("kftt-data-1.0/data/tok/kyoto-train.cln.$language")
  for form in orig tok; do
    for set in train tune dev test; do files+=("kftt-data-1.0/data/$form/kyoto-$set.$language"); done
  done
done
unpack kftt-data-1.0.tar.gz kftt "${files[@]}"
echo "$OUTPUT is ready for: onmt_entmax prepare translation --corpus kftt --direction ja-en --data $OUTPUT"
