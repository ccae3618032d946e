#!/usr/bin/env bash
# Fetches WMT 2016 Romanian-English: Europarl v8 and SETIMES v2 for training, newsdev2016 and newstest2016.
#
#   bash scripts/download_wmt16_roen.sh [--output data/wmt16] [--from FOLDER | --mirror URL] [--checksums FILE]
#   onmt_entmax prepare translation --corpus wmt16 --direction ro-en --data data/wmt16 --output runs/ro-en/data
SCRIPT=download_wmt16_roen.sh
WHAT="WMT 2016 Romanian-English: Europarl v8, SETIMES v2 (OPUS), newsdev2016, newstest2016."
LICENCE="Europarl: free to use; SETIMES: Creative Commons BY-SA 3.0; news sets: for research."
WMT=http://data.statmt.org/wmt16/translation-task
OPUS=https://object.pouta.csc.fi/OPUS-SETIMES/v2/moses
BASES="$WMT and $OPUS"
OUTPUT=data/wmt16
. "$(dirname "${BASH_SOURCE[0]}")/download.sh"
options "$@"

archive "$WMT" training-parallel-ep-v8.tgz ""
archive "$OPUS" en-ro.txt.zip ""
archive "$WMT" dev.tgz 4a3dc2760bb077f4308cce96b06e6af6
archive "$WMT" test.tgz 3d809cd0c2c86adb2c67034d15c4e446
unpack training-parallel-ep-v8.tgz europarl \
  training-parallel-ep-v8/europarl-v8.ro-en.ro training-parallel-ep-v8/europarl-v8.ro-en.en
# the corpus was called SETIMES2 before
stem=SETIMES
listing=$(python3 -m zipfile -l "$OUTPUT/archives/en-ro.txt.zip")
case "$listing" in *SETIMES2.en-ro.*) stem=SETIMES2 ;; esac
unpack en-ro.txt.zip setimes "$stem.en-ro.en" "$stem.en-ro.ro"
unpack dev.tgz dev dev/newsdev2016-roen-src.ro.sgm dev/newsdev2016-roen-ref.en.sgm
unpack test.tgz test test/newstest2016-roen-src.ro.sgm test/newstest2016-roen-ref.en.sgm
echo "$OUTPUT is ready for: onmt_entmax prepare translation --corpus wmt16 --direction ro-en --data $OUTPUT"
