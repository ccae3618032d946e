#!/usr/bin/env bash
# Makes .venv with everything onmt_entmax needs. Run it again at any time: what is there already is left alone.
#
#   bash scripts/install.sh                              modern stack: torch 2.13, OpenNMT-py without its old pins
#   ONMT_ENTMAX_STACK=stock bash scripts/install.sh      stock stack: what OpenNMT-py declares (torch 2.2, numpy 1.26)
#
# Settings (environment): PYTHON (default: the newest of python3.11, 3.12, 3.10, python3), ONMT_ENTMAX_VENV (default: .venv),
# ONMT_ENTMAX_EXTRAS=test also installs what the tests need, ONMT_ENTMAX_TORCH (default: torch==2.13.0).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

STACK=${ONMT_ENTMAX_STACK:-modern}
VENV=${ONMT_ENTMAX_VENV:-.venv}
EXTRAS=${ONMT_ENTMAX_EXTRAS:-}
TORCH=${ONMT_ENTMAX_TORCH:-torch==2.13.0}
export PIP_DISABLE_PIP_VERSION_CHECK=1

case "$STACK" in
  modern) VERSIONS="3.10 3.11 3.12" ;;
  stock) VERSIONS="3.9 3.10 3.11 3.12" ;;
  *) echo "install.sh: Invalid setting for ONMT_ENTMAX_STACK: $STACK. Valid choices: modern, stock." >&2; exit 2 ;;
esac
case "$EXTRAS" in
  "" | test) ;;
  *) echo "install.sh: Invalid setting for ONMT_ENTMAX_EXTRAS: $EXTRAS. Valid choices: test." >&2; exit 2 ;;
esac

python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

find_python() {
  local candidate version
  for candidate in ${PYTHON:-python3.11 python3.12 python3.10 python3}; do
    version=$(python_version "$candidate") || continue
    case " $VERSIONS " in *" $version "*) echo "$candidate"; return ;; esac
  done
  echo "install.sh: no suitable Python found (the $STACK stack needs one of: $VERSIONS). Name one: PYTHON=/path/to/python" >&2
  exit 2
}

# What must hold for the installation to be the wanted one; changes to these files make it stale.
STAMP="$VENV/.onmt_entmax_installed"
WANTED="$STACK|$EXTRAS|$TORCH|$(cat setup.py scripts/install.sh onmt_entmax/version.py | cksum)"
if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$WANTED" ]; then
  echo "install.sh: $VENV is up to date ($STACK stack)"
  exit 0
fi

if [ -f "$STAMP" ] && [ "$(cut -d'|' -f1 "$STAMP")" != "$STACK" ]; then
  echo "install.sh: $VENV holds the other stack; name another folder with ONMT_ENTMAX_VENV, or delete $VENV." >&2
  exit 2
fi
if [ ! -x "$VENV/bin/python" ]; then
  FOUND=$(find_python)
  echo "install.sh: making $VENV with $FOUND ($(python_version "$FOUND"))"
  "$FOUND" -m venv "$VENV"
fi
PIP=("$VENV/bin/python" -m pip install --quiet)
SECONDS=0
say() { printf 'install.sh: [%3ds] %s\n' "$SECONDS" "$1"; }

TEST_PACKAGES=()
if [ "$EXTRAS" = test ]; then TEST_PACKAGES=(pytest pytest-xdist hypothesis ruff "snakemake>=8; python_version >= '3.11'"); fi

say "build tools"
"${PIP[@]}" "setuptools>=64" wheel
if [ "$STACK" = modern ]; then
  say "$TORCH"
  "${PIP[@]}" "$TORCH"
  say "what OpenNMT-py imports, and what onmt_entmax uses"
  "${PIP[@]}" configargparse "pyonmttok>=1.37,<2" numpy spacy pyahocorasick rapidfuzz fasttext-wheel regex pyyaml sacrebleu \
    tensorboard flask waitress sentencepiece subword-nmt sacremoses tqdm matplotlib jinja2 tabulate numba ${TEST_PACKAGES[@]+"${TEST_PACKAGES[@]}"}
  say "OpenNMT-py 3.5.1, without its version pins"
  "${PIP[@]}" --no-deps "OpenNMT-py==3.5.1"
  if [ "$EXTRAS" = test ]; then "${PIP[@]}" --no-deps "entmax==1.3"; fi
  say "onmt_entmax"
  "${PIP[@]}" --no-deps --no-build-isolation --editable .
else
  say "OpenNMT-py 3.5.1 with torch 2.2 and numpy 1.26 (several GB)"
  "${PIP[@]}" --no-build-isolation --editable . ${TEST_PACKAGES[@]+"${TEST_PACKAGES[@]}"}
  if [ "$EXTRAS" = test ]; then "${PIP[@]}" --no-deps "entmax==1.3"; fi
fi
"$VENV/bin/onmt_entmax" doctor
printf '%s' "$WANTED" >"$STAMP"
say "done"
