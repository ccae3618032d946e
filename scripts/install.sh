#!/usr/bin/env bash
# Makes .venv with everything onmt_entmax needs. Run it again at any time: what is there already is left alone.
#
#   bash scripts/install.sh                              modern stack: torch 2.13, OpenNMT-py without its old pins
#   ONMT_ENTMAX_STACK=stock bash scripts/install.sh      stock stack: what OpenNMT-py declares (torch 2.2, numpy 1.26)
#
# Settings (environment): PYTHON (default: the first of python3.11, 3.12, 3.13, 3.14, 3.10, python3 that fits the stack),
# ONMT_ENTMAX_VENV (default: .venv), ONMT_ENTMAX_TORCH (default: torch==2.13.0), and ONMT_ENTMAX_EXTRAS, any of
#   transforms   what OpenNMT-py's transforms clean, terminology, inlinetags, fuzzymatch and onmt_tokenize need
#   test         what the tests need
#   docs         MkDocs, for the documentation site
#   workflow     Snakemake, for scripts/reproduce_*.sh
#   japanese     MeCab, for the Japanese corpora
#   gpu          Triton (290 MB), which PyTorch's builds for CUDA bring anyway
# with commas or blanks between them (ONMT_ENTMAX_EXTRAS=transforms,test). ONMT_ENTMAX_PACKAGE is a wheel of onmt_entmax to
# install in place of this folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

STACK=${ONMT_ENTMAX_STACK:-modern}
VENV=${ONMT_ENTMAX_VENV:-.venv}
EXTRAS=${ONMT_ENTMAX_EXTRAS:-}
PACKAGE=(${ONMT_ENTMAX_PACKAGE:+"$ONMT_ENTMAX_PACKAGE"})
[ ${#PACKAGE[@]} != 0 ] || PACKAGE=(--no-build-isolation --editable .)
TORCH=${ONMT_ENTMAX_TORCH:-torch==2.13.0}
export PIP_DISABLE_PIP_VERSION_CHECK=1

fail() { echo "install.sh: $1" >&2; exit 2; }

case "$STACK" in
  modern) VERSIONS="3.10 3.11 3.12 3.13 3.14" ;;
  stock) VERSIONS="3.9 3.10 3.11 3.12" ;;
  *) fail "Invalid setting for ONMT_ENTMAX_STACK: $STACK. Valid choices: modern, stock." ;;
esac
KNOWN="transforms test docs workflow japanese gpu"
set -f  # an asterisk is no file name here
for extra in ${EXTRAS//,/ }; do
  case " $KNOWN " in
    *" $extra "*) ;;
    *) fail "Invalid setting for ONMT_ENTMAX_EXTRAS: $extra. Valid choices: ${KNOWN// /, }." ;;
  esac
done
set +f
wanted() { # extra
  case ",${EXTRAS//[[:space:]]/,}," in *",$1,"*) ;; *) return 1 ;; esac
}
CHOSEN=
for extra in $KNOWN; do if wanted "$extra"; then CHOSEN=${CHOSEN:+$CHOSEN,}$extra; fi; done

python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

find_python() {
  local candidate version
  for candidate in ${PYTHON:+"$PYTHON"} $([ -n "${PYTHON:-}" ] || echo python3.11 python3.12 python3.13 python3.14 python3.10 python3); do
    version=$(python_version "$candidate") || continue
    case " $VERSIONS " in *" $version "*) echo "$candidate"; return ;; esac
  done
  return 1
}

make_venv() {
  local found version uv=
  found=$(find_python) || found=
  if [ -z "${PYTHON:-}" ]; then uv=$(command -v uv) || uv=; fi
  if [ -z "$found" ] && [ -n "$uv" ]; then
    echo "install.sh: making $VENV with Python 3.12, got by uv"
    uv venv --quiet --seed --python 3.12 "$VENV"
    return
  fi
  [ -n "$found" ] || fail "no suitable Python found${PYTHON:+ at $PYTHON} (the $STACK stack needs one of: $VERSIONS). Get one from your \
distribution (Debian, Ubuntu: apt install python3 python3-venv), or install uv, which fetches one; or name one: PYTHON=/path/to/python"
  version=$(python_version "$found")
  echo "install.sh: making $VENV with $found ($version)"
  if "$found" -c 'import ensurepip, venv' 2>/dev/null; then
    "$found" -m venv "$VENV"
  elif [ -n "$uv" ]; then
    uv venv --quiet --seed --python "$found" "$VENV"
  else
    fail "$found lacks the modules venv and ensurepip. Install them (Debian, Ubuntu: apt install python$version-venv), or uv."
  fi
}

if [ -n "${PYTHON:-}" ] && [ -x "$VENV/bin/python" ] && [ "$(python_version "$PYTHON")" != "$(python_version "$VENV/bin/python")" ]; then
  fail "$VENV was made with another Python than $PYTHON; name another folder with ONMT_ENTMAX_VENV, or delete $VENV."
fi

# What must hold for the installation to be the wanted one; changes to these files make it stale.
STAMP="$VENV/.onmt_entmax_installed"
WANTED="$STACK|$CHOSEN|$TORCH|${PACKAGE[*]}|$(cat setup.py pyproject.toml scripts/install.sh onmt_entmax/version.py | cksum)"
if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$WANTED" ]; then
  echo "install.sh: $VENV is up to date ($STACK stack)"
  exit 0
fi

if [ -f "$STAMP" ] && [ "$(cut -d'|' -f1 "$STAMP")" != "$STACK" ]; then
  fail "$VENV holds the other stack; name another folder with ONMT_ENTMAX_VENV, or delete $VENV."
fi
# one that was interrupted may lack pip
"$VENV/bin/python" -m pip --version >/dev/null 2>&1 || make_venv
printf '%s|unfinished' "$STACK" >"$STAMP"
PIP=("$VENV/bin/python" -m pip install --quiet)
SECONDS=0
say() { printf 'install.sh: [%3ds] %s\n' "$SECONDS" "$1"; }

TOKENIZER="pyonmttok>=1.37,<2; python_version < '3.13'"
FASTTEXT=fasttext-numpy2-wheel  # of fasttext-wheel `predict` fails with numpy 2
[ "$STACK" = modern ] || FASTTEXT=fasttext-wheel
MORE=()
if wanted transforms; then MORE+=("$FASTTEXT; python_version < '3.13'" pyahocorasick spacy "$TOKENIZER"); fi
if wanted test; then MORE+=(pytest pytest-xdist hypothesis ruff mypy selenium types-PyYAML types-tabulate "$TOKENIZER"); fi
if wanted test || wanted workflow; then MORE+=("snakemake>=8; python_version >= '3.11'"); fi
if wanted docs; then MORE+=("mkdocs-material>=9.5" "mkdocstrings[python]>=0.26" "latex2mathml>=3.77"); fi
if wanted japanese; then MORE+=(mecab-python3 ipadic); fi
if wanted gpu; then MORE+=("triton>=3.0; sys_platform == 'linux'"); fi

say "build tools"
"${PIP[@]}" "setuptools>=64" wheel
if [ "$STACK" = modern ]; then
  say "$TORCH"
  "${PIP[@]}" "$TORCH"
  say "what OpenNMT-py imports, and what onmt_entmax uses"
  "${PIP[@]}" configargparse numpy scipy regex pyyaml sacrebleu tensorboard flask waitress sentencepiece subword-nmt \
    sacremoses tqdm rapidfuzz matplotlib jinja2 tabulate numba ${MORE[@]+"${MORE[@]}"}
  say "OpenNMT-py 3.5.1, without its version pins"
  "${PIP[@]}" --no-deps "OpenNMT-py==3.5.1"
  if wanted test; then "${PIP[@]}" --no-deps "entmax==1.3"; fi
  say "onmt_entmax"
  "${PIP[@]}" --no-deps "${PACKAGE[@]}"
else
  if [ -n "${ONMT_ENTMAX_TORCH:-}" ]; then say "$TORCH" && "${PIP[@]}" "$TORCH"; fi
  say "OpenNMT-py 3.5.1 with torch 2.2 and numpy 1.26 (several GB)"
  "${PIP[@]}" "${PACKAGE[@]}" ${MORE[@]+"${MORE[@]}"}
  if wanted test; then "${PIP[@]}" --no-deps "entmax==1.3"; fi
fi
"$VENV/bin/onmt_entmax" doctor
printf '%s' "$WANTED" >"$STAMP"
say "done"
