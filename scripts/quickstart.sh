#!/usr/bin/env bash
# From nothing to a comparison of softmax and 1.5-entmax on the bundled data, in under ten minutes on two cores:
# installs into .venv, trains two small inflection models with stock onmt_train, decodes the test set with stock
# onmt_translate and certificates, and prints accuracy, sparsity and certificate rates side by side.
#
#   bash scripts/quickstart.sh
#
# Settings (environment): RUN (default: runs/quickstart), STEPS (default: from configs/quickstart.yaml).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
RUN=${RUN:-runs/quickstart}
VENV=${ONMT_ENTMAX_VENV:-.venv}
SECONDS=0
say() { printf '\n[%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$1"; }

say "1/6 Installing"
bash scripts/install.sh
PATH="$(cd "$VENV/bin" && pwd):$PATH"
export PATH

say "2/6 Preparing the bundled English and Spanish verbs"
onmt_entmax prepare inflection --data data/inflection --name bundled --output "$RUN/data"

# the best checkpoint is that of a validation: at least one
FEWER=(${STEPS:+-train_steps "$STEPS" -valid_steps $((STEPS < 300 ? STEPS : 300))})
# Two single-threaded runs side by side use two cores better than one run with two threads.
export OMP_NUM_THREADS=1
train() { # name, function; in the background, where its process becomes the training's, which can be ended
  mkdir -p "$RUN/$1"
  exec onmt_train -config configs/quickstart.yaml \
    -data "{corpus_1: {path_src: $RUN/data/train.src, path_tgt: $RUN/data/train.tgt, weight: 1},
            valid: {path_src: $RUN/data/dev.src, path_tgt: $RUN/data/dev.tgt}}" \
    -src_vocab "$RUN/data/vocab.src" -tgt_vocab "$RUN/data/vocab.tgt" -save_data "$RUN/$1/sample" \
    -global_attention_function "$2" -generator_function "$2" -save_model "$RUN/$1/model" ${FEWER[@]+"${FEWER[@]}"} \
    >"$RUN/$1/train.log" 2>&1
}
last_line() { # what the newest report in a log says: step, accuracy, time left
  grep -E 'Step +[0-9]+/' "$1" 2>/dev/null | tail -n 1 |
    sed -E 's/.*Step +([0-9]+)\/ *([0-9]+);.* acc: *([0-9.]+).*; ([0-9:]+) left.*/step \1 of \2, accuracy \3%, \4 left/;
            s/.*Step +([0-9]+)\/ *([0-9]+);.* acc: *([0-9.]+).*/step \1 of \2, accuracy \3%/' || true
}

say "3/6 Training softmax and 1.5-entmax side by side (logs: $RUN/*/train.log)"
train softmax softmax & SOFTMAX_JOB=$!
train entmax15 entmax15 & ENTMAX_JOB=$!
trap 'kill "$SOFTMAX_JOB" "$ENTMAX_JOB" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
shown=
while kill -0 "$SOFTMAX_JOB" 2>/dev/null || kill -0 "$ENTMAX_JOB" 2>/dev/null; do
  sleep 2
  now=$(printf '  softmax: %-50s  1.5-entmax: %s' "$(last_line "$RUN/softmax/train.log")" "$(last_line "$RUN/entmax15/train.log")")
  [ "$now" = "$shown" ] || printf '%s\n' "$now"
  shown=$now
done
for name in softmax entmax15; do
  [ "$name" = softmax ] && job=$SOFTMAX_JOB || job=$ENTMAX_JOB
  wait "$job" || { echo "quickstart.sh: training $name failed:" >&2; tail -n 5 "$RUN/$name/train.log" >&2; exit 1; }
done
trap - EXIT INT TERM

TRAINED=${STEPS:-$(sed -n 's/^train_steps: *//p' configs/quickstart.yaml)}
evaluate() { # name, alpha
  ln -sf model_best.pt "$RUN/$1/model.pt"  # the best validation accuracy, as in the paper
  onmt_translate -model "$RUN/$1/model.pt" -src "$RUN/data/test.src" -output "$RUN/$1/test.pred" -beam_size 5 \
    -batch_size 64 -certificates "$RUN/$1/test.jsonl" >"$RUN/$1/translate.log" 2>&1
  onmt_entmax sparsity --model "$RUN/$1/model.pt" --src "$RUN/data/dev.src" --tgt "$RUN/data/dev.tgt" \
    --output "$RUN/$1/sparsity.json" >"$RUN/$1/sparsity.log" 2>&1
  onmt_entmax evaluate inflection --gold "$RUN/data/test" --predictions "$RUN/$1/test.pred" \
    --certificates "$RUN/$1/test.jsonl" --alpha "$2" --seed 1 --steps "$TRAINED" \
    --json "$RUN/$1/evaluation.json" >"$RUN/$1/evaluation.txt"
}
say "4/6 Decoding the test set with certificates, beam 5"
evaluate softmax 1.0/1.0 & SOFTMAX_JOB=$!
evaluate entmax15 1.5/1.5 & ENTMAX_JOB=$!
wait "$SOFTMAX_JOB" || { tail -n 3 "$RUN"/softmax/{translate,sparsity}.log >&2; exit 1; }
wait "$ENTMAX_JOB" || { tail -n 3 "$RUN"/entmax15/{translate,sparsity}.log >&2; exit 1; }

say "5/6 Drawing pictures"
bash scripts/figures.sh "$RUN"

say "6/6 Results"
onmt_entmax overview softmax="$RUN/softmax" 1.5-entmax="$RUN/entmax15"
echo
echo 'The whole output distribution of 1.5-entmax for the past participle of "draw" (which is not in the training data):'
echo
onmt_entmax figure beam --input "$RUN/entmax15/draw.jsonl"
printf '\nDone in %d:%02d. Pictures are in %s/figures, models in %s/{softmax,entmax15}.\n' \
  $((SECONDS / 60)) $((SECONDS % 60)) "$RUN" "$RUN"
printf 'Try both models in the browser:\n  %s/onmt_entmax inspect --model %s/entmax15/model.pt %s/softmax/model.pt\n' \
  "$VENV/bin" "$RUN" "$RUN"
