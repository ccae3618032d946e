"""``onmt_entmax doctor``: what is installed, which engine computes, whether OpenNMT-py knows the plugin."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onmt_entmax
from onmt_entmax.errors import UserError
from onmt_entmax.version import version

PACKAGES = (
    "OpenNMT-py",
    "torch",
    "numpy",
    "sacrebleu",
    "scipy",
    "sentencepiece",
    "subword-nmt",
    "sacremoses",
    "matplotlib",
    "jinja2",
    "tabulate",
    "numba",
    "rapidfuzz",
)
# beside those that only some of OpenNMT-py's transforms need: package -> (what for, how to get it)
OPTIONAL = {
    "snakemake": ("grids (scripts/reproduce_*.sh)", "pip install 'snakemake>=8', Python 3.11 or newer"),
    "mecab-python3": ("Japanese: tokens of KFTT", "pip install mecab-python3 ipadic"),
}

_PROBE = (
    "import onmt, sys; import onmt_entmax.plugin.patches as r; "
    "from onmt.translate.translator import Translator; "
    "print(r.is_registered(), Translator.__name__)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``doctor`` takes no arguments."""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _stack(torch_version: str) -> str:
    if torch_version == "missing":
        return "none: torch is missing"
    major, minor = (int(part) for part in torch_version.split("+")[0].split(".")[:2])
    return "stock (the versions OpenNMT-py declares)" if (major, minor) < (2, 3) else "modern"


def _devices() -> str:
    import torch

    names = ["CPU with " + str(torch.get_num_threads()) + " thread(s)"]
    names += [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return ", ".join(names)


def _engines() -> Iterator[tuple[str, str]]:
    """Which engine computes float32 on each kind of device, and where compiled loops are kept."""
    import torch

    from onmt_entmax import engines

    for device in ["cpu", "cuda"][: 1 + torch.cuda.is_available()]:
        yield f"engine, {device}", engines.describe(device)
    if engines.name("cpu") == "cpu":
        from onmt_entmax.engines.cpu import loops

        place = loops.this_thread.stats.cache_path
        yield "compiled loops", f"kept in {place}" if place else "compiled at every start: no folder to keep them in"


def _optional() -> Iterator[tuple[str, str]]:
    """What is installed, or what it would be good for and how to get it, of what most people can do without."""
    from onmt_entmax.plugin import standins

    wanted: dict[str, list[str]] = {}
    for transform, packages in standins.TRANSFORMS.items():
        for package in (standins.PACKAGES[name] for name in packages):
            if package not in PACKAGES:
                wanted.setdefault(package, []).append(transform)
    parts = {
        package: (f"transform{'s' * (len(names) > 1)} {', '.join(names)}", f"pip install {package}")
        for package, names in wanted.items()
    }
    for package, (purpose, remedy) in {**parts, **OPTIONAL}.items():
        version = _version(package)
        yield package, version if version != "missing" else f"missing, needed only for {purpose}: {remedy}"


def hook_status() -> tuple[bool, str]:
    """Start a fresh Python as a stock command would, and see whether ``import onmt`` registers the plugin."""
    probe = subprocess.run([sys.executable, "-W", "ignore", "-c", _PROBE], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        lines = probe.stderr.strip().splitlines() or ["no message"]
        return False, lines[-1]
    if probe.stdout.split() == ["True", "SparseTranslator"]:
        return True, "in place: `import onmt` registers the plugin"
    if os.environ.get("ONMT_ENTMAX_DISABLE") == "1":
        return False, "switched off by ONMT_ENTMAX_DISABLE=1"
    return False, "NOT in place: onmt_entmax.pth is not read from site-packages; call onmt_entmax.register() yourself"


def run(args: argparse.Namespace) -> int:
    """Print the report. Returns 0 when all is well, 1 when something is missing that is needed."""
    versions = {package: _version(package) for package in PACKAGES}
    working, hook = hook_status()
    rows = [("onmt_entmax", f"{version()} in {Path(onmt_entmax.__file__).resolve().parent}")]
    rows += [("Python", f"{platform.python_version()} in {sys.prefix}")]
    rows += list(versions.items())
    rows += [("stack", _stack(versions["torch"])), ("hook", hook)]
    rows += [("devices", _devices() if versions["torch"] != "missing" else "none")]
    try:
        rows += _engines() if versions["torch"] != "missing" else []
    except UserError as error:  # what ONMT_ENTMAX_ENGINE asks for cannot be had
        rows, working = [*rows, ("engine", str(error))], False
    rows += _optional()
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    missing = [package for package, version in versions.items() if version == "missing"]
    if missing:
        print(f"Missing: {', '.join(missing)}. bash scripts/install.sh installs everything.")
    return 0 if working and not missing else 1
