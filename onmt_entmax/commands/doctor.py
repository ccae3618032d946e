"""``onmt_entmax doctor``: what is installed, whether OpenNMT-py knows the plugin, which stack, which devices."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys

from onmt_entmax.version import __version__

PACKAGES = (
    "OpenNMT-py",
    "torch",
    "numpy",
    "sacrebleu",
    "sentencepiece",
    "subword-nmt",
    "sacremoses",
    "matplotlib",
    "numba",
)

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
    """Print the report. Returns 0 when all is well, 1 when something is missing."""
    versions = {package: _version(package) for package in PACKAGES}
    working, hook = hook_status()
    rows = [("onmt_entmax", f"{__version__} in {os.path.dirname(os.path.abspath(__file__))}")]
    rows += [("Python", f"{platform.python_version()} in {sys.prefix}")]
    rows += list(versions.items())
    rows += [("stack", _stack(versions["torch"])), ("hook", hook)]
    rows += [("devices", _devices() if versions["torch"] != "missing" else "none")]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    missing = [package for package, version in versions.items() if version == "missing"]
    if missing:
        print(f"Missing: {', '.join(missing)}. bash scripts/install.sh installs everything.")
    return 0 if working and not missing else 1
