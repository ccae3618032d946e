#!/usr/bin/env bash
# Builds dist/ (an archive of the sources and, from that, a wheel) of what is committed, checks that the wheel holds what
# belongs in it and nothing else, installs it into an empty environment and tries the stock commands there.
#
#   bash scripts/release.sh
#
# Settings (environment): those of scripts/install.sh but ONMT_ENTMAX_VENV and ONMT_ENTMAX_EXTRAS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf '\nrelease.sh: %s\n' "$1"; }
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
HERE=$PWD
[ -z "$(git status --porcelain)" ] || echo "release.sh: what is not committed is left out" >&2

say "building"
git clone --quiet --no-hardlinks . "$WORK/clone"
PYTHON_FOR_BUILD=${PYTHON:-python3}
"$PYTHON_FOR_BUILD" -m venv "$WORK/build"
"$WORK/build/bin/python" -m pip install --quiet --disable-pip-version-check "setuptools>=64" wheel
build() { # kind; from the folder it stands in
  "$WORK/build/bin/python" -c "import setuptools.build_meta as b, sys; b.build_$1(sys.argv[1])" "$WORK/dist" >"$WORK/$1.log" 2>&1 ||
    { tail -n 5 "$WORK/$1.log" >&2; exit 1; }
}
mkdir "$WORK/dist" "$WORK/unpacked"
(cd "$WORK/clone" && build sdist)
tar -xzf "$WORK"/dist/*.tar.gz -C "$WORK/unpacked" --strip-components=1
(cd "$WORK/unpacked" && build wheel)

say "what the wheel holds"
"$WORK/build/bin/python" - "$WORK/clone" "$WORK"/dist/*.whl <<'END'
import pathlib, subprocess, sys, zipfile

clone, wheel = sys.argv[1:]
listed = subprocess.run(["git", "ls-files", "onmt_entmax"], cwd=clone, capture_output=True, text=True, check=True)
wanted = {name for name in listed.stdout.splitlines() if not name.endswith(".md")} | {"onmt_entmax.pth"}
about = pathlib.Path(wheel).name.split("-py3")[0] + ".dist-info/"
found = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith(about)}
if found != wanted:
    sys.exit(f"release.sh: lacks {sorted(wanted - found)}; should not hold {sorted(found - wanted)}")
print(f"{len(found) - 1} files of the package, onmt_entmax.pth, {about}")
END

say "an empty environment"
VENV="$WORK/an environment"
ONMT_ENTMAX_EXTRAS='' ONMT_ENTMAX_VENV=$VENV ONMT_ENTMAX_PACKAGE=$(echo "$WORK"/dist/*.whl) \
  bash "$WORK/clone/scripts/install.sh"

say "the stock commands"
export PATH="$VENV/bin:$PATH" OMP_NUM_THREADS=1
mkdir "$WORK/run" && cd "$WORK/run"
"$VENV/bin/python" - "$HERE" "$(basename "$WORK"/dist/*.whl)" <<'END'
import pathlib, random, sys

import onmt_entmax
from onmt_entmax.version import version

assert sys.argv[1] not in onmt_entmax.__file__, onmt_entmax.__file__
assert sys.argv[2].startswith(f"onmt_entmax-{version()}-py3"), (sys.argv[2], version())
print(f"onmt_entmax {version()} in {onmt_entmax.__file__}")
words = ["".join(random.Random(number).choices("abcdefgh", k=4)) for number in range(60)]
pathlib.Path("src").write_text("".join(" ".join(word) + "\n" for word in words))
pathlib.Path("tgt").write_text("".join(" ".join(reversed(word)) + "\n" for word in words))
END
DATA='{corpus_1: {path_src: src, path_tgt: tgt}, valid: {path_src: src, path_tgt: tgt}}'
tried() { # words...
  echo "  $1"
  "$@" >"$1.log" 2>&1 || { tail -n 5 "$1.log" >&2; exit 1; }
}
tried onmt_build_vocab -data "$DATA" -src_vocab vocab.src -tgt_vocab vocab.tgt -save_data sample -n_sample -1
tried onmt_train -data "$DATA" -src_vocab vocab.src -tgt_vocab vocab.tgt -save_data sample -save_model model \
  -generator_function entmax15 -global_attention_function entmax15 -encoder_type brnn -layers 1 -hidden_size 32 \
  -word_vec_size 16 -train_steps 20 -valid_steps 10 -save_checkpoint_steps 20 -bucket_size 64 -num_workers 0 -batch_size 16
tried onmt_translate -model model_step_20.pt -src src -output out -certificates out.jsonl
[ "$(wc -l <out)" -eq 60 ] && [ "$(wc -l <out.jsonl)" -eq 60 ] || { echo "release.sh: the output lacks lines" >&2; exit 1; }
tried onmt_entmax doctor
cd "$HERE"
mkdir -p dist
cp "$WORK"/dist/* dist/
say "done: $(cd dist && echo $(cd "$WORK/dist" && ls))"
