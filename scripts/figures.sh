#!/usr/bin/env bash
# Draws every figure, table 1 and 3, and a page per model, from a folder of runs such as the quickstart leaves.
#
#   bash scripts/figures.sh runs/quickstart
#
# RUN/data (or the folder that RUN/grid.json names) holds the prepared text; every other folder in RUN that holds a
# model.pt is a model, or in the output of a grid (scripts/reproduce_*.sh) every folder runs/PAIR/seedN with a
# model_best.pt: its metrics file, and test.jsonl, evaluation.json, sparsity.json where they are there. Pictures go to
# RUN/figures, pages to the models' report.html.
#
# Settings (environment): FORMAT (default: png; svg, pdf), EXAMPLE and GOLD (an input line and its target; default: the
# past participle of "draw", in a grid the first line of the dev set), PART (lines of the dev set for the support
# histogram, default: 200).
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: bash scripts/figures.sh RUN_DIR" >&2; exit 2; }
RUN=${1%/}
FORMAT=${FORMAT:-png}
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

MODELS=() # folders below RUN
for model in "$RUN"/*/model.pt "$RUN"/runs/*/seed*/model_best.pt; do
  [ -e "$model" ] || continue
  folder=$(dirname "$model")
  MODELS+=("${folder#"$RUN"/}")
done
[ ${#MODELS[@]} -gt 0 ] || {
  echo "figures.sh: $RUN holds neither a folder with a model.pt nor runs/PAIR/seedN; run scripts/quickstart.sh first." >&2
  exit 2
}
[ -n "${EXAMPLE:-}" ] && [ -z "${GOLD:-}" ] && { echo "figures.sh: EXAMPLE needs GOLD, its target." >&2; exit 2; }
[ -n "${GOLD:-}" ] && [ -z "${EXAMPLE:-}" ] && { echo "figures.sh: GOLD needs EXAMPLE, its input." >&2; exit 2; }
DATA="$RUN/data"
if [ ! -d "$DATA" ] && [ -f "$RUN/grid.json" ]; then # made with --prepared
  DATA=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1], encoding="utf-8"))["data"])' "$RUN/grid.json")
fi
[ -f "$DATA/dev.tgt" ] || echo "figures.sh: $DATA holds no prepared text: left out what is made from it" >&2
if [ -z "${EXAMPLE:-}" ] && [ -d "$RUN/runs" ]; then
  [ -f "$DATA/dev.tgt" ] || { echo "figures.sh: no input to show: give EXAMPLE and GOLD." >&2; exit 2; }
  EXAMPLE=$(sed -n 1p "$DATA/dev.src") GOLD=$(sed -n 1p "$DATA/dev.tgt")
fi
EXAMPLE=${EXAMPLE:-<lang:english> <tag:V> <tag:V.PTCP> <tag:PST> d r a w}
GOLD=${GOLD:-d r a w n}
mkdir -p "$OUT"

# A picture that cannot be drawn, such as for want of a font, is left out.
figure() {
  onmt_entmax figure "$1" --output "$OUT/$2.$FORMAT" "${@:3}" | sed -n 1p ||
    echo "figures.sh: $OUT/$2.$FORMAT left out, see above" >&2
}
files() { # pattern of a file's name in a model's folder: fills FOUND
  FOUND=()
  local name path
  for name in "${MODELS[@]}"; do
    for path in "$RUN/$name"/$1; do [ -s "$path" ] && FOUND+=("$path"); done
  done
  [ ${#FOUND[@]} -gt 0 ] || { echo "figures.sh: no $1 in $RUN/*: left out what is made from it" >&2; return 1; }
}

figure mappings mappings

draw_model() { # name of a model's folder
  local folder="$RUN/$1" number=0 draw model short=${1#runs/}
  short=${short//\//_}
  for model in "$folder"/model.pt "$folder"/model_average.pt "$folder"/model_best.pt; do [ -e "$model" ] && break; done
  : >"$folder/examples.src" && : >"$folder/examples.tgt"
  if [ -s "$folder/test.jsonl" ] && [ -f "$DATA/test.tgt" ]; then
    onmt_entmax uncertain --certificates "$folder/test.jsonl" --src "$DATA/test.src" --tgt "$DATA/test.tgt" \
      --count 20 --output "$folder/examples"
    number=$(wc -l <"$folder/examples.src")
  fi
  draw=$((number + 1))
  printf '%s\n' "$EXAMPLE" >>"$folder/examples.src"
  printf '%s\n' "$GOLD" >>"$folder/examples.tgt"
  onmt_entmax trace --model "$model" --src "$folder/examples.src" --output "$folder/examples.trace.jsonl"
  sed -n "${draw}p" "$folder/examples.trace.jsonl" >"$folder/draw.jsonl"
  # The model is loaded once for the examples and for the part of the dev set whose supports are counted.
  cp "$folder/examples.src" "$folder/forced.src" && cp "$folder/examples.tgt" "$folder/forced.tgt"
  if [ -f "$DATA/dev.tgt" ]; then
    head -n "$PART" "$DATA/dev.src" >>"$folder/forced.src"
    head -n "$PART" "$DATA/dev.tgt" >>"$folder/forced.tgt"
  fi
  onmt_entmax force --model "$model" --src "$folder/forced.src" --tgt "$folder/forced.tgt" --output "$folder/forced.all"
  sed -n "1,${draw}p" "$folder/forced.all" >"$folder/examples.forced.jsonl"
  sed "1,${draw}d" "$folder/forced.all" >"$folder/support.forced"
  rm "$folder/forced.src" "$folder/forced.tgt" "$folder/forced.all"
  figure beam "beam_$short" --input "$folder/draw.jsonl"
  figure forced "forced_$short" --input "$folder/examples.forced.jsonl" --line "$draw"
  onmt_entmax report "$folder" | sed -n 1p
}

JOBS=()
for name in "${MODELS[@]}"; do
  draw_model "$name" &
  JOBS+=($!)
done
for job in "${JOBS[@]}"; do wait "$job" || { echo "figures.sh: a model's pictures failed, see above" >&2; exit 1; }; done

if files draw.jsonl; then figure attention attention --input "${FOUND[@]}" --labels "${MODELS[@]}"; fi
if files support.forced; then figure support-histogram support-histogram --input "${FOUND[@]}" --labels "${MODELS[@]}"; fi
if files "*_metrics.jsonl"; then
  figure learning-curves learning-curves --input "${FOUND[@]}"
  figure training-speed training-speed --input "${FOUND[@]}"
  # it needs models that differ in one alpha with the other at 1.5
  figure alpha-grid alpha-grid --input "${FOUND[@]}"
fi
if files evaluation.json; then figure trust trust --input "${FOUND[@]}"; fi
if files evaluation.json; then onmt_entmax table 1 --input "${FOUND[@]}" --output "$OUT/table1.md" | sed -n 1p; fi
if files sparsity.json; then onmt_entmax table 3 --input "${FOUND[@]}" --output "$OUT/table3.md" | sed -n 1p; fi
