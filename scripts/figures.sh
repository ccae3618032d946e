#!/usr/bin/env bash
# Draws every figure, table 1 and 3, and a page per model, from a folder of runs such as the quickstart leaves.
#
#   bash scripts/figures.sh runs/quickstart
#
# RUN/data holds the prepared text; every other folder in RUN that holds a model.pt is a model: its metrics file, and
# test.jsonl, evaluation.json, sparsity.json where they are there. Pictures go to RUN/figures, pages to RUN/*/report.html.
#
# Settings (environment): FORMAT (default: png; svg, pdf), EXAMPLE (an input line; default: the past participle of
# "draw"), GOLD (its target), PART (lines of the dev set for the support histogram, default: 200).
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: bash scripts/figures.sh RUN_DIR" >&2; exit 2; }
RUN=${1%/}
FORMAT=${FORMAT:-png}
EXAMPLE=${EXAMPLE:-<lang:english> <tag:V> <tag:V.PTCP> <tag:PST> d r a w}
GOLD=${GOLD:-d r a w n}
PART=${PART:-200}
case "$FORMAT" in
  png | svg | pdf) ;;
  *) echo "figures.sh: Invalid setting for FORMAT: $FORMAT. Valid choices: png, svg, pdf." >&2; exit 2 ;;
esac
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${ONMT_ENTMAX_VENV:-$HERE/.venv}
[ -x "$VENV/bin/onmt_entmax" ] && PATH="$(cd "$VENV/bin" && pwd):$PATH"
export PATH OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
OUT="$RUN/figures"
mkdir -p "$OUT"

MODELS=()
for model in "$RUN"/*/model.pt; do
  [ -e "$model" ] && MODELS+=("$(basename "$(dirname "$model")")")
done
[ ${#MODELS[@]} -gt 0 ] || { echo "figures.sh: $RUN holds no folder with a model.pt; run scripts/quickstart.sh first." >&2; exit 2; }

figure() { onmt_entmax figure "$1" --output "$OUT/$2.$FORMAT" "${@:3}" | head -n 1; }
files() { # pattern of a file's name in a model's folder: fills FOUND
  FOUND=()
  local name path
  for name in "${MODELS[@]}"; do
    for path in "$RUN/$name"/$1; do [ -s "$path" ] && FOUND+=("$path"); done
  done
  [ ${#FOUND[@]} -gt 0 ] || { echo "figures.sh: no $1 in $RUN/*: left out what is made from it" >&2; return 1; }
}

figure mappings mappings

for name in "${MODELS[@]}"; do
  folder="$RUN/$name"
  onmt_entmax trace --model "$folder/model.pt" --src_text "$EXAMPLE" --output "$folder/draw.jsonl"
  onmt_entmax force --model "$folder/model.pt" --src_text "$EXAMPLE" --tgt_text "$GOLD" --output "$folder/draw.forced.jsonl"
  figure beam "beam_$name" --input "$folder/draw.jsonl"
  figure forced "forced_$name" --input "$folder/draw.forced.jsonl"
  if [ -f "$RUN/data/dev.tgt" ]; then
    head -n "$PART" "$RUN/data/dev.src" >"$folder/dev_part.src"
    head -n "$PART" "$RUN/data/dev.tgt" >"$folder/dev_part.tgt"
    onmt_entmax force --model "$folder/model.pt" --src "$folder/dev_part.src" --tgt "$folder/dev_part.tgt" \
      --output "$folder/support.steps"
  fi
  if [ -s "$folder/test.jsonl" ]; then
    targets=()
    [ -f "$RUN/data/test.tgt" ] && targets=(--tgt "$RUN/data/test.tgt")
    onmt_entmax uncertain --certificates "$folder/test.jsonl" --src "$RUN/data/test.src" ${targets[@]+"${targets[@]}"} \
      --count 20 --output "$folder/examples"
    onmt_entmax trace --model "$folder/model.pt" --src "$folder/examples.src" --output "$folder/examples.trace.jsonl"
    if [ ${#targets[@]} -gt 0 ]; then
      onmt_entmax force --model "$folder/model.pt" --src "$folder/examples.src" --tgt "$folder/examples.tgt" \
        --output "$folder/examples.forced.jsonl"
    fi
  fi
  onmt_entmax report "$folder" | head -n 1
done

if files draw.jsonl; then figure attention attention --input "${FOUND[@]}" --labels "${MODELS[@]}"; fi
if files support.steps; then figure support-histogram support-histogram --input "${FOUND[@]}" --labels "${MODELS[@]}"; fi
if files "*_metrics.jsonl"; then
  figure learning-curves learning-curves --input "${FOUND[@]}"
  figure training-speed training-speed --input "${FOUND[@]}"
  figure alpha-grid alpha-grid --input "${FOUND[@]}" 2>/dev/null ||
    echo "figures.sh: alpha-grid left out: it needs models that differ in one alpha with the other at 1.5" >&2
fi
if files evaluation.json; then onmt_entmax table 1 --input "${FOUND[@]}" --output "$OUT/table1.md" | head -n 1; fi
if files sparsity.json; then onmt_entmax table 3 --input "${FOUND[@]}" --output "$OUT/table3.md" | head -n 1; fi
