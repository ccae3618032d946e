#!/usr/bin/env bash
# Measures OpenNMT-py's softmax against ours on a bare machine with a GPU, without network, in at most five minutes:
# the kernels' tests on the device, mapping and loss, training of two recurrent models and a Transformer, decoding.
#
#   WHEELS=wheels bash benchmarks/gpu.sh --collect      # where there is a network: fills the folder, under 60 MB
#   WHEELS=wheels bash benchmarks/gpu.sh                # on the machine with the GPU
#   bash benchmarks/gpu.sh --device cpu --quick         # does it run at all? small shapes, where all is installed
#
# Settings (environment): PYTHON (default: python3; it brings PyTorch, and with it triton), WHEELS (a folder; unset:
# everything is installed), OUT (default: runs/gpu: a log and a JSON file for each part, gpu.json, gpu.md), PARTS (default:
# all of kernels mapping inflection translation transformer decoding); for --collect PYTHON_VERSION (default: that of
# PYTHON), PLATFORM (default: manylinux2014_x86_64). A part that fails or takes too long is named, the others go on, and
# the exit status is 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-runs/gpu}
ALL="kernels mapping inflection translation transformer decoding"
PARTS=${PARTS:-$ALL}
DEVICE=cuda
QUICK=()
COLLECT=

fail() {
  echo "gpu.sh: $1" >&2
  exit 2
}

while [ $# -gt 0 ]; do
  case "$1" in
    --collect) COLLECT=1 ;;
    --quick) QUICK=(--quick) ;;
    --device)
      DEVICE=${2:-}
      [[ "$DEVICE" =~ ^(cpu|cuda)$ ]] || fail "Invalid setting for \`--device\`: $DEVICE. Valid choices: cpu, cuda."
      shift
      ;;
    *) fail "Unknown argument: $1. Valid choices: --collect, --device cpu|cuda, --quick." ;;
  esac
  shift
done

for part in $PARTS; do
  [[ " $ALL " == *" $part "* ]] || fail "Invalid setting for \`PARTS\`: $part. Valid choices: ${ALL// /, }."
done

if [ -n "$COLLECT" ]; then
  [ -n "${WHEELS:-}" ] || fail "Set WHEELS to the folder to fill."
  VERSION=${PYTHON_VERSION:-$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')}
  PLATFORM=${PLATFORM:-manylinux2014_x86_64}
  # without dependencies: PyTorch and triton are the machine's own, and numba is for CPUs
  "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$WHEELS" \
    --python-version "$VERSION" --platform "$PLATFORM" --platform manylinux_2_28_x86_64 --platform any \
    "OpenNMT-py==3.5.1" configargparse pyyaml numpy regex sacrebleu portalocker tabulate colorama lxml tqdm rapidfuzz \
    sentencepiece pytest iniconfig pluggy packaging pygments pytest-xdist execnet "entmax==1.3" liger-kernel
  echo "gpu.sh: $(find "$WHEELS" -name '*.whl' | wc -l) wheels for Python $VERSION, $(du -sm "$WHEELS" | cut -f1) MB in $WHEELS"
  exit 0
fi

"$PYTHON" -c 'import torch' 2>/dev/null || fail "$PYTHON has no PyTorch; name another one: PYTHON=/path/to/python."
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
SECONDS=0
# all that is written lies in OUT, whatever the machine's home folder is
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$OUT/triton}
say() { printf 'gpu.sh: [%3ds] %s\n' "$SECONDS" "$1"; }

rm -rf "$OUT/site"
mkdir "$OUT/site"
# where the package is not installed: what its .pth does at every start of Python
echo "import onmt_entmax.autoload" >"$OUT/site/sitecustomize.py"
export PYTHONPATH="$OUT/site:$PWD${PYTHONPATH:+:$PYTHONPATH}"
if [ -n "${WHEELS:-}" ]; then
  [ -d "$WHEELS" ] || fail "Invalid setting for \`WHEELS\`: $WHEELS. There is no such folder; --collect fills one."
  say "installing the wheels of $WHEELS into $OUT/site"
  CHOSEN=()
  for wheel in "$WHEELS"/*.whl; do
    [ -e "$wheel" ] || fail "There are no wheels in $WHEELS; --collect gets them."
    # the machine's own numpy goes with its PyTorch
    case "$wheel" in */numpy-*) "$PYTHON" -c 'import numpy' 2>/dev/null && continue ;; esac
    CHOSEN+=("$wheel")
  done
  "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --target "$OUT/site" "${CHOSEN[@]}"
fi
"$PYTHON" -W ignore -c 'import onmt_entmax, sys
try:
    onmt_entmax.register()
except RuntimeError as error:
    sys.exit(f"gpu.sh: {error}. WHEELS=folder installs what is missing, see --collect.")' || exit 2
"$PYTHON" -W ignore benchmarks/gpu.py check --device "$DEVICE" || exit 2

SLOW=1 # on a CPU the times say nothing, and the limits only end what hangs
[ "$DEVICE" = cuda ] || SLOW=10
THREADS=$([ "$DEVICE" = cuda ] && echo 2 || echo 1) # two beside another busy process take many times as long
export OMP_NUM_THREADS=$THREADS                     # onmt_train's too
FAILED=()
rm -f "$OUT"/*.json "$OUT"/*.log "$OUT"/gpu.md
part() { # name, seconds, command...
  local name=$1 limit=$(($2 * SLOW)) left=$((295 * SLOW - SECONDS)) status=0
  shift 2
  [[ " $PARTS " == *" ${name/models/decoding} "* ]] || return 0
  if [ "$left" -lt 5 ]; then
    FAILED+=("$name")
    say "$name FAILED: no time is left for it"
    return
  fi
  [ "$limit" -le "$left" ] || limit=$left
  say "$name (at most $limit s)"
  timeout --kill-after=5 "$limit" "$@" >"$OUT/$name.log" 2>&1 || status=$?
  if [ "$status" -ne 0 ]; then
    FAILED+=("$name")
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then say "$name took too long and was ended"; fi
    say "$name FAILED ($status); the end of $OUT/$name.log:"
    tail -n 5 "$OUT/$name.log" | sed 's/^/    /'
  fi
}
bench() { # name, seconds, file, arguments...
  local name=$1 limit=$2 file=$3
  shift 3
  part "$name" "$limit" "$PYTHON" -W ignore "benchmarks/$file.py" --device "$DEVICE" --threads "$THREADS" \
    --output "$OUT/$name.json" ${QUICK[@]+"${QUICK[@]}"} "$@"
}

# The tests run on the device; on a CPU they need Triton's interpreter, which takes too long for all of them.
TESTS=("$PYTHON" -W ignore -m pytest -q -p no:cacheprovider --noconftest -c /dev/null --rootdir "$PWD")
if [ "$DEVICE" = cpu ]; then
  export KERNELS_ON=cpu
  TESTS=(env TRITON_INTERPRET=1 "${TESTS[@]}" -k "test_losses or test_both_choosers_agree or test_backward_twice")
else
  export KERNELS_ON=cuda
  "$PYTHON" -c 'import xdist' 2>/dev/null && TESTS+=(-n "$(($(nproc) > 12 ? 12 : $(nproc)))")
fi
if "$PYTHON" -c 'import triton' 2>/dev/null; then
  part kernels 70 "${TESTS[@]}" tests/entmax/triton_kernels.py tests/engines/gpu_kernels.py
else
  say "kernels: left out, triton is not installed"
fi
ALPHAS="1 1.33 1.5 2" WARM=200 REPEATS=7 FEWER=3 SAME=
if [ "${#QUICK[@]}" -gt 0 ]; then ALPHAS=1.5 WARM=1 REPEATS=1 FEWER=1 SAME=1; fi # small shapes are one
bench mapping 30 mapping --repeats $REPEATS
# shellcheck disable=SC2086
bench inflection 55 training --task inflection --alphas $ALPHAS --warm-up $WARM --repeats $REPEATS --memory
# shellcheck disable=SC2086
[ -n "$SAME" ] || bench translation 65 training --task translation --alphas $ALPHAS --warm-up $WARM --repeats $REPEATS --memory
bench transformer 45 transformer --shape base --warm-up $((WARM / 4)) --repeats $FEWER --memory
part models 40 "$PYTHON" -W ignore benchmarks/gpu.py models --device "$DEVICE" --folder "$OUT/models" ${QUICK[@]+"${QUICK[@]}"}
if [ -e "$OUT/models/entmax15.pt" ]; then
  bench decoding 55 decoding --softmax "$OUT/models/softmax.pt" --entmax "$OUT/models/entmax15.pt" \
    --src "$OUT/models/test.src" --repeats 1
fi

"$PYTHON" -W ignore benchmarks/gpu.py table --device "$DEVICE" --folder "$OUT" --failed "${FAILED[*]-}" | tee "$OUT/gpu.md"
say "done; $OUT/gpu.md, gpu.json"
[ "${#FAILED[@]}" -eq 0 ] || { say "FAILED: ${FAILED[*]}"; exit 1; }
