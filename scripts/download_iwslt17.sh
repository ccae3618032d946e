#!/usr/bin/env bash
# Fetches IWSLT 2017 German-English: training text, dev2010, tst2010 to tst2015, and the sources of tst2016 and tst2017
# in both directions (the reference of one is the source of the other).
#
#   bash scripts/download_iwslt17.sh [--output data/iwslt17] [--from FOLDER | --mirror URL] [--checksums FILE]
#   onmt_entmax prepare translation --corpus iwslt17 --direction de-en --data data/iwslt17 --output runs/de-en/data
SCRIPT=download_iwslt17.sh
WHAT="IWSLT 2017 German-English (TED talks, WIT3)."
LICENCE="Creative Commons BY-NC-ND 3.0 (TED): not for commercial use, no derived data may be passed on."
BASES=https://github.com/hlt-mt/WIT3/raw/HEAD/archive
OUTPUT=data/iwslt17
. "$(dirname "${BASH_SOURCE[0]}")/download.sh"
options "$@"

archive "$BASES" 2017-01-trnted/texts/de/en/de-en.tgz ca2b94d694150d4d6c5dc64c200fa589 de-en.tgz
archive "$BASES" 2017-01-trnted/texts/en/de/en-de.tgz d8a32cfc002a4f12b17429cfa78050e6 en-de.tgz
archive "$BASES" 2017-01-ted-test/texts/de/en/de-en.tgz "" 2017-01-ted-test.de-en.tgz
archive "$BASES" 2017-01-ted-test/texts/en/de/en-de.tgz "" 2017-01-ted-test.en-de.tgz
for pair in de-en en-de; do
  files=()
  for language in de en; do
    files+=("$pair/train.tags.$pair.$language")
    for set in dev2010 tst2010 tst2011 tst2012 tst2013 tst2014 tst2015; do
      files+=("$pair/IWSLT17.TED.$set.$pair.$language.xml")
    done
  done
  unpack "$pair.tgz" "train-$pair" "${files[@]}"
  source=${pair%-*}
  unpack "2017-01-ted-test.$pair.tgz" "test-$pair" \
    "$pair/IWSLT17.TED.tst2016.$pair.$source.xml" "$pair/IWSLT17.TED.tst2017.$pair.$source.xml"
done
echo "$OUTPUT is ready for: onmt_entmax prepare translation --corpus iwslt17 --direction de-en --data $OUTPUT"
