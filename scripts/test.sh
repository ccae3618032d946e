#!/usr/bin/env bash
# Installs into .venv (see install.sh), runs lint, builds the documentation site and runs all tests.
#
#   bash scripts/test.sh              everything
#   bash scripts/test.sh -k entmax    arguments go to pytest; lint still runs
#
# ONMT_ENTMAX_EXTRAS=transforms also installs what some of OpenNMT-py's transforms need.
# Tests on real corpora run where ONMT_ENTMAX_DATA names their folder. ONMT_ENTMAX_JOBS: processes (default: one per core).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
STACK=${ONMT_ENTMAX_STACK:-modern}
export ONMT_ENTMAX_EXTRAS=test,${ONMT_ENTMAX_EXTRAS:-} OMP_NUM_THREADS=1
[ "$STACK" != modern ] || ONMT_ENTMAX_EXTRAS=docs,$ONMT_ENTMAX_EXTRAS
bash scripts/install.sh
BIN=${ONMT_ENTMAX_VENV:-.venv}/bin
if [ "$STACK" = modern ]; then
  "$BIN/ruff" check .
  "$BIN/ruff" format --check .
  "$BIN/mypy" --no-error-summary
  NO_MKDOCS_2_WARNING=1 "$BIN/mkdocs" build --quiet --strict -f docs/mkdocs.yml
fi
# one process per core, a file's tests together because they share what is dear to make
exec "$BIN/python" -m pytest -n "${ONMT_ENTMAX_JOBS:-auto}" --dist loadfile "$@"
