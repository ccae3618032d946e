"""Loading checkpoints: what cannot or must not be loaded gives one line that names the file."""

from __future__ import annotations

import os
import pickle
import zipfile
from argparse import Namespace

import pytest
import torch
from onmt.models.model_saver import load_checkpoint

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.checkpoints import check_globals


class Bomb:
    def __reduce__(self):
        return os.system, ("touch exploded",)


def test_a_real_checkpoint_loads(entmax_model):
    checkpoint = load_checkpoint(str(entmax_model))
    assert checkpoint["opt"].generator_alpha == 1.5
    check_globals(entmax_model)


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"none\.pt: there is no such file"):
        load_checkpoint(str(tmp_path / "none.pt"))
    with pytest.raises(UserError, match=r"m_best\.pt: there is no such file\. A training with `keep_best` writes it\."):
        load_checkpoint(str(tmp_path / "m_best.pt"))


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.99])
def test_a_truncated_file(entmax_model, tmp_path, kept):
    content = entmax_model.read_bytes()
    path = tmp_path / "short.pt"
    path.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    with pytest.raises(UserError, match=r"short\.pt: it is truncated"):
        load_checkpoint(str(path))


def test_a_checkpoint_that_would_run_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"opt": Bomb(), "vocab": {}, "model": {}, "generator": {}}, "evil.pt")
    with pytest.raises(UserError, match=r"Refused to load evil\.pt: it would run code \(posix system\)"):
        load_checkpoint("evil.pt")
    assert not (tmp_path / "exploded").exists()


def test_a_computed_global_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb(), protocol=4))
    with pytest.raises(UserError, match="would run code"):
        load_checkpoint(str(tmp_path / "evil.pt"))


# os.system by the old INST opcode; torch.load, which on torch 2.2 would read a second file without any check
@pytest.mark.parametrize(
    ("content", "named"),
    [(b"(S'touch exploded'\nios\nsystem\n.", "os system"), (b"ctorch\nload\n(S'second.pt'\ntR.", "torch load")],
)
def test_every_way_to_name_a_function_is_refused(tmp_path, monkeypatch, content, named):
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("evil.pt", "w") as archive:
        archive.writestr("archive/xdata.pkl", pickle.dumps({}, protocol=2))  # harmless, and found first
        archive.writestr("archive/data.pkl", content)
    with pytest.raises(UserError, match=rf"Refused to load evil\.pt: it would run code \({named}\)"):
        load_checkpoint("evil.pt")
    assert not (tmp_path / "exploded").exists()


def test_a_foreign_file(tmp_path):
    torch.save({"weights": torch.zeros(2)}, tmp_path / "foreign.pt")
    with pytest.raises(UserError, match=r"foreign\.pt: it is not a checkpoint of OpenNMT-py \(it has no `opt`\)"):
        load_checkpoint(str(tmp_path / "foreign.pt"))


def test_ctranslate2_refuses_sparse_models():
    converter = pytest.importorskip("ctranslate2.converters.opennmt_py")
    with pytest.raises(UserError, match=r"CTranslate2 decodes with softmax.*`generator_alpha` 1\.5"):
        converter.check_opt(Namespace(generator_function="entmax15"), 1)
