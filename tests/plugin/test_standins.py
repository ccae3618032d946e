"""Without pyonmttok, spaCy and others OpenNMT-py works, other programs see them missing, and users are told."""

from __future__ import annotations

import copy
import importlib
import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onmt_entmax.errors import UserError
from onmt_entmax.plugin import standins
from onmt_entmax.plugin.standins import Vocab, build_vocab_from_tokens
from tests.installed import call, needs_installation
from tests.stock import write

TOKEN = st.sampled_from(["a", "b", "c", "<unk>", "<s>", "", "é", "｟x｠"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=3
)


def pickled(vocab):
    vocab.default_id = vocab.default_id  # the real one pickles this index; OpenNMT-py always sets it
    return pickle.loads(pickle.dumps(vocab))


TOKENS = st.lists(TOKEN, max_size=12)
SIZE = st.integers(0, 6)
STEP = st.one_of(
    st.tuples(st.just("add_token"), TOKEN),
    st.tuples(st.just("add_token"), TOKEN, st.integers(0, 4)),
    st.tuples(st.just("resize"), SIZE, st.integers(0, 3)),
    st.tuples(st.just("default_id"), SIZE),
    st.tuples(st.just("copied"), st.sampled_from([copy.copy, copy.deepcopy, pickled])),
)


def everything(vocab) -> tuple:
    tokens = [*vocab.ids_to_tokens, "<unk>", "not there"]
    return (
        vocab.ids_to_tokens,
        vocab.tokens_to_ids,
        vocab.counters,
        vocab.default_id,
        len(vocab),
        vocab(tokens),
        [(token in vocab, vocab[token], vocab.lookup_token(token)) for token in tokens],
        [vocab.lookup_index(index) for index in range(len(vocab) + 2)],
    )


@given(TOKENS, st.none() | st.lists(TOKEN, max_size=4), SIZE, st.integers(0, 3), st.lists(STEP, max_size=6))
def test_answers_like_the_real_one(tokens, special, size, frequency, steps):
    real_module = pytest.importorskip(
        "pyonmttok", reason="pyonmttok is not installed: it has no wheels for Python 3.13 and newer"
    )
    settings = {"maximum_size": size, "minimum_frequency": frequency, "special_tokens": special}
    real = real_module.build_vocab_from_tokens(tokens, **settings)
    ours = build_vocab_from_tokens(tokens, **settings)
    assert everything(ours) == everything(real)
    for name, *values in steps:
        if name == "copied":
            before = ours, everything(ours)
            real, ours = values[0](real), values[0](ours)
            ours.add_token("in the copy alone")
            real.add_token("in the copy alone")
            assert everything(before[0]) == before[1]
        elif name == "default_id":
            real.default_id = ours.default_id = values[0]
        else:
            getattr(real, name)(*values)
            getattr(ours, name)(*values)
        assert everything(ours) == everything(real)


@pytest.mark.parametrize(
    "wrong", ["v('ab')", "v[0]", "v.lookup_token(None)", "v.lookup_index(-1)", "iter(v).__next__()"]
)
def test_refuses_what_the_real_one_refuses(wrong):
    vocabs = [build_vocab_from_tokens(["a"])]
    if not standins.is_missing("pyonmttok"):
        vocabs.append(importlib.import_module("pyonmttok").build_vocab_from_tokens(["a"]))
    for vocab in vocabs:
        with pytest.raises(TypeError):
            eval(wrong, {"v": vocab})


def test_known_vocabulary():
    # b comes twice, a and c once in this order; the special token is in front and takes one of the three places
    vocab = build_vocab_from_tokens(["a", "b", "c", "b"], maximum_size=3, special_tokens=["<unk>"])
    assert vocab.ids_to_tokens == ["<unk>", "b", "a"]
    assert vocab(["a", "c", "b"]) == [2, 0, 1]  # c was cut: the index of <unk>
    assert len(Vocab()) == 0
    assert Vocab()(["x"]) == [0]


def test_lists_given_out_are_copies():
    vocab = build_vocab_from_tokens(["a"])
    vocab.ids_to_tokens.append("b")
    vocab.tokens_to_ids["b"] = 1
    assert everything(vocab) == everything(build_vocab_from_tokens(["a"]))


def test_a_missing_package_may_be_named_but_not_used():
    with standins.imported(["no_such_package_0"]), pytest.raises(UserError, match=r"pip install nothing\."):
        from no_such_package_0 import anything

        anything.deeper("argument")


@pytest.fixture(autouse=True)
def known_package(monkeypatch):
    monkeypatch.setitem(standins.PACKAGES, "no_such_package_0", "nothing")


def test_sys_modules_is_as_before(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)  # somebody forbids the import
    with standins.imported(["spacy", "no_such_package_0", "json"]):
        assert sys.modules["json"] is importlib.import_module("json")
        with standins.imported(["no_such_package_0"]):
            pass
        assert standins.is_missing("no_such_package_0")
        assert "no_such_package_0" in sys.modules
    assert sys.modules["spacy"] is None
    assert "no_such_package_0" not in sys.modules


@pytest.fixture(scope="module")
def lean(tmp_path_factory) -> dict[str, str]:
    """The environment of a process in which the packages are not to be found."""
    folder = tmp_path_factory.mktemp("lean")
    (folder / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "stock = PathFinder.find_spec\n"
        f"hidden = {sorted(standins.PACKAGES)}\n"
        "PathFinder.find_spec = classmethod(\n"
        "    lambda cls, name, *rest: None if name in hidden else stock(name, *rest)\n"
        ")\n",
        encoding="utf-8",
    )
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def succeeded(done: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
    assert done.returncode == 0, done.stderr
    return done


@needs_installation
def test_stock_commands_without_the_packages_and_checkpoints_go_both_ways(lean, corpus, entmax_model, tmp_path):
    arguments = corpus.train_args("lean", "-generator_function", "entmax15", "-num_workers", "1")
    assert "No module" not in succeeded(call("onmt_train", *arguments, **lean)).stderr
    source = write(tmp_path / "source", corpus.sources[:5])
    for model in (corpus.folder / "lean_step_4.pt", entmax_model):
        succeeded(call("onmt_translate", "-model", model, "-src", source, "-output", tmp_path / "out", **lean))
        here = corpus.translate(model, corpus.sources[:5])
        assert (tmp_path / "out").read_text(encoding="utf-8").split("\n")[:-1] == here


@needs_installation
def test_vocabulary_as_a_program(lean, corpus, tmp_path):
    files = ["-src_vocab", tmp_path / "src", "-tgt_vocab", tmp_path / "tgt", "-save_data", tmp_path / "sample"]
    words = ["python", "-m", "onmt.bin.build_vocab", "-data", corpus.data(), *files]
    succeeded(call(*words, **lean))
    # every letter of the corpus is a token
    tokens = {line.split("\t")[0] for line in (tmp_path / "src").read_text(encoding="utf-8").splitlines()}
    assert tokens == set(" ".join(corpus.sources).split())
    done = call(*words, "-learn_subwords", "-src_subword_type", "bpe", **lean)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("onmt_build_vocab: `learn_subwords` needs what is not installed")


OTHERS = """
import importlib, importlib.util, pickle, sys
if sys.argv[1:]:
    print(pickle.loads(bytes.fromhex(sys.argv[1])).ids_to_tokens)  # a process may begin so
import onmt, onmt.bin.build_vocab
from onmt.transforms.clean import fasttext
for name in {names}:
    assert importlib.util.find_spec(name) is None and name not in sys.modules, name
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name == name
    else:
        raise AssertionError(name)
"""


@needs_installation
@pytest.mark.parametrize("disabled", ["0", "1"])
def test_others_get_the_true_answer(lean, disabled):
    sent = [] if disabled == "1" else [pickle.dumps(build_vocab_from_tokens(["a", "b"])).hex()]
    script = OTHERS.format(names=sorted(standins.PACKAGES))
    done = succeeded(call("python", "-W", "ignore", "-c", script, *sent, **lean, ONMT_ENTMAX_DISABLE=disabled))
    assert done.stdout == ("" if disabled == "1" else "['a', 'b']\n")


REFUSALS = """
import sys
from onmt.bin.train import main
for name in {names}:
    sys.argv = ["onmt_train", *{arguments}, "-transforms", name]
    try:
        main()
    except SystemExit as stop:
        print(name, stop.code)
from onmt.transforms import AVAILABLE_TRANSFORMS
from onmt.translate.translation_server import ServerModel
for use in (
    lambda: AVAILABLE_TRANSFORMS["fuzzymatch"](None),
    lambda: ServerModel.build_tokenizer(None, {{"type": "pyonmttok", "params": {{}}}}),
):
    try:
        use()
    except ValueError as error:
        print(error)
"""


@needs_installation
def test_a_transform_that_needs_a_missing_package_is_refused_in_one_line(lean, corpus):
    names = sorted(standins.TRANSFORMS)
    script = REFUSALS.format(names=names, arguments=corpus.train_args("refused"))
    done = succeeded(call("python", "-W", "ignore", "-c", script, **lean))
    old = " (under Python 3.12 or older: there is no wheel for newer ones)" if sys.version_info >= (3, 13) else ""
    assert [line for line in done.stderr.splitlines() if line.startswith("onmt_train:")] == [
        f"onmt_train: The transform `clean` needs what is not installed: pip install fasttext-numpy2-wheel{old}.",
        "onmt_train: The transform `fuzzymatch` needs what is not installed: pip install rapidfuzz.",
        "onmt_train: The transform `inlinetags` needs what is not installed: pip install pyahocorasick.",
        f"onmt_train: The transform `onmt_tokenize` needs what is not installed: pip install pyonmttok{old}.",
        "onmt_train: The transform `terminology` needs what is not installed: pip install spacy pyahocorasick.",
    ]
    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-7:] == [
        *[f"{name} 2" for name in names],
        "The transform `fuzzymatch` needs what is not installed: pip install rapidfuzz.",
        f"The tokenizer `pyonmttok` needs what is not installed: pip install pyonmttok{old}.",
    ]
