"""Installing is enough: every way into OpenNMT-py knows the plugin, and failures stop the program with one line."""

from __future__ import annotations

import sys

import pytest

import onmt_entmax
from tests.installed import call, needs_installation

SHOW = "from onmt.translate.translator import Translator; print(Translator.__name__)"


def test_registering_twice_does_no_harm():
    import onmt.opts

    before = onmt.opts.model_opts
    onmt_entmax.register()
    onmt_entmax.register()
    assert onmt.opts.model_opts is before


@pytest.mark.parametrize("version", ["3.5.1", "3.5", "3.5.10"])
def test_versions_we_know(version):
    onmt_entmax.check_version(version)


@pytest.mark.parametrize("version", ["3.4.3", "3.6.0", "3.51", "4.0"])
def test_other_versions_are_refused(version):
    with pytest.raises(RuntimeError, match=rf"OpenNMT-py {version} is installed, but 3\.5\.x is needed"):
        onmt_entmax.check_version(version)


@needs_installation
def test_import_registers_in_a_fresh_process():
    assert call("python", "-c", SHOW).stdout.strip() == "SparseTranslator"


@needs_installation
def test_the_switch_leaves_stock_alone():
    assert call("python", "-c", SHOW, ONMT_ENTMAX_DISABLE="1").stdout.strip() == "Translator"


@needs_installation
@pytest.mark.parametrize("module", ["train.data", "train.losses", "translate.scorers", "alphas"])
def test_a_process_may_begin_with_any_module_of_ours(module):
    done = call("python", "-c", f"import onmt_entmax.plugin.{module}; {SHOW}")
    assert (done.stdout.strip(), done.stderr) == ("SparseTranslator", "")


@needs_installation
def test_spawned_children_are_registered(tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(
        "import torch.multiprocessing as mp\n"
        "def child(queue):\n"
        f"    {SHOW.replace('print(Translator.__name__)', 'queue.put(Translator.__name__)')}\n"
        "if __name__ == '__main__':\n"
        "    context = mp.get_context('spawn')\n"
        "    queue = context.SimpleQueue()\n"
        "    process = context.Process(target=child, args=(queue,))\n"
        "    process.start(); print(queue.get()); process.join()\n",
        encoding="utf-8",
    )
    assert call("python", script).stdout.strip() == "SparseTranslator"


@needs_installation
@pytest.mark.parametrize("words", [("onmt_train",), ("python", "-m", "onmt.bin.train")])
def test_stock_commands_know_our_options(words):
    assert "--generator_alpha" in call(*words, "--help").stdout


@needs_installation
def test_a_foreign_version_stops_the_program_with_one_line(tmp_path):
    folder = tmp_path / "onmt"
    folder.mkdir()
    (folder / "__init__.py").write_text("__version__ = '3.6.0'\n", encoding="utf-8")
    done = call("python", "-c", "import onmt; print('went on')", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip().split("\n") == [
        "onmt_entmax: registration failed: OpenNMT-py 3.6.0 is installed, but 3.5.x is needed: "
        "pip install OpenNMT-py==3.5.1"
    ]


@needs_installation
def test_doctor_finds_the_hook():
    done = call("onmt_entmax", "doctor")
    assert done.returncode == 0, done.stdout
    assert "in place: `import onmt` registers the plugin" in done.stdout


@needs_installation
def test_starting_python_imports_neither_torch_nor_onmt():
    done = call("python", "-c", "import sys; print('onmt' in sys.modules, 'torch' in sys.modules)")
    assert done.stdout.split() == ["False", "False"]
    assert sys.modules  # this process, in contrast, has both


def test_interrupting_a_command_takes_one_line(monkeypatch, capsys):
    from onmt_entmax.plugin import parsing

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parsing.one_line_errors(interrupted)()
    monkeypatch.setattr(sys, "argv", ["/somewhere/onmt_train"])
    with pytest.raises(SystemExit) as stopped:
        parsing.one_line_errors(interrupted)()
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "onmt_train: interrupted\n"
