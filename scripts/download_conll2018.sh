#!/usr/bin/env bash
# Fetches the data of the CoNLL-SIGMORPHON 2018 shared task, task 1 (inflection), 103 languages, into FOLDER/task1.
#
#   bash scripts/download_conll2018.sh [--output data/conll2018] [--from FOLDER | --mirror URL] [--any-size]
#   onmt_entmax prepare inflection --data data/conll2018/task1 --setting medium --output runs/medium/data
#
# --from FOLDER takes the archive conll2018-master.tar.gz, or an unpacked copy with the folders all and surprise.
SCRIPT=download_conll2018.sh
WHAT="CoNLL-SIGMORPHON 2018 shared task, task 1 (Cotterell et al. 2018)."
LICENCE="Creative Commons BY-SA 3.0 (UniMorph, from Wiktionary)."
BASES=https://github.com/sigmorphon/conll2018/archive/refs/heads
OUTPUT=data/conll2018
COUNTS=1
. "$(dirname "${BASH_SOURCE[0]}")/download.sh"
options "$@"

copy=''
for folder in "$FROM" "$FROM/task1" "$FROM/conll2018/task1" "$FROM/conll2018-master/task1"; do
  if [ -n "$FROM" ] && [ -d "$folder/all" ] && [ -d "$folder/surprise" ]; then copy=$folder; fi
done
fresh=$OUTPUT/task1.unpacking
if [ -d "$OUTPUT/task1/all" ] && [ -d "$OUTPUT/task1/surprise" ]; then
  echo "$OUTPUT/task1: there already"
else
  rm -rf "$fresh" && mkdir -p "$fresh"
  if [ -n "$copy" ]; then
    echo "task1: from $copy"
    cp -R "$copy/all" "$copy/surprise" "$fresh"
  else
    archive "$BASES" master.tar.gz "" conll2018-master.tar.gz
    # the repository has much besides
    tar -xzf "$OUTPUT/archives/conll2018-master.tar.gz" -C "$fresh" --strip-components=2 \
      conll2018-master/task1/all conll2018-master/task1/surprise 2>/dev/null ||
      { rm -rf "$fresh"; die "the archive conll2018-master.tar.gz lacks the folder task1/all or task1/surprise."; }
  fi
  chmod -R u+w "$fresh"
  ours_to_replace "$OUTPUT/task1"
  rm -rf "$OUTPUT/task1"
  mv "$fresh" "$OUTPUT/task1"
fi

check() { # kind, official number of files, official number of lines
  local files lines
  files=$(find "$OUTPUT/task1" -type f -name "*-$1" ! -name '*-covered-test' | wc -l | tr -d ' ')
  lines=$(find "$OUTPUT/task1" -type f -name "*-$1" ! -name '*-covered-test' -exec cat {} + | wc -l | tr -d ' ')
  [ "$files" != 0 ] || die "$OUTPUT/task1 lacks the files LANGUAGE-$1."
  if [ "$files $lines" = "$2 $3" ]; then
    echo "$1: $files languages, $lines lines"
  elif [ -n "$ANY_SIZE" ]; then
    echo "$1: $files languages, $lines lines (official: $2, $3)"
  else
    die "$1: $files languages and $lines lines, the official data have $2 and $3. Delete $OUTPUT/task1 and $OUTPUT/archives to begin again, or go on with --any-size."
  fi
}
check train-low 103 10261
check train-medium 102 95323
check train-high 86 735610
check dev 103 65250
check test 107 65296
echo "$OUTPUT is ready for: onmt_entmax prepare inflection --data $OUTPUT/task1 --setting medium"
