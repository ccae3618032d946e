"""What registering changes in OpenNMT-py is what the table says, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from onmt_entmax.plugin import patches

# Compares every module and class of OpenNMT-py, and its dictionaries of encoders and decoders, before and after.
COMPARE = """
import importlib, json, pkgutil, sys, warnings
warnings.simplefilter("ignore")
import onmt
for found in pkgutil.walk_packages(onmt.__path__, "onmt."):
    if ".tests" not in found.name:
        try:
            importlib.import_module(found.name)
        except (Exception, SystemExit):  # what needs a package that is not there, or a GPU
            sys.modules.pop(found.name, None)

def owners():
    # of each module, class and dictionary: all its names, and the object itself
    found = {}
    for name, module in sorted(sys.modules.items()):
        if name == "onmt" or name.startswith("onmt."):
            found.setdefault(id(module), ([], module))[0].append(name)
            for attribute, value in list(module.__dict__.items()):
                ours = isinstance(value, type) and value.__module__.startswith("onmt.")
                if ours or (isinstance(value, dict) and attribute.startswith("str2")):
                    found.setdefault(id(value), ([], value))[0].append(f"{name}:{attribute}")
    return found

def content(owner):
    return dict(owner if isinstance(owner, dict) else owner.__dict__)

before = owners()
kept = {number: content(owner) for number, (_, owner) in before.items()}  # kept, so that no id is used twice
from onmt_entmax.plugin import patches
patches.apply()
changed = []
for number, (names, owner) in before.items():
    for name, value in content(owner).items():
        if name != "__warningregistry__" and kept[number].get(name) is not value:
            changed.append([names, name])
print(json.dumps(changed))
"""


def test_nothing_else_is_rebound():
    environment = {**os.environ, "ONMT_ENTMAX_DISABLE": "1"}
    done = subprocess.run([sys.executable, "-c", COMPARE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    table = {(patch.owner, patch.name) for patch in patches.TABLE}
    found = set()
    for owners, name in json.loads(done.stdout.splitlines()[-1]):
        rows = {(owner, name) for owner in owners} & table
        assert len(rows) == 1, (owners, name)
        found |= rows
    assert found == table


def test_every_row_has_a_reason_and_stands_once():
    pairs = [(patch.owner, patch.name) for patch in patches.TABLE]
    assert len(set(pairs)) == len(pairs)
    assert all(len(patch.why) > 8 for patch in patches.TABLE)


def test_a_name_that_has_moved_is_an_error():
    with pytest.raises(AttributeError):
        patches.rebind(patches, "no_such_name", lambda stock: stock)
    with pytest.raises(AttributeError, match="gone"):
        patches.rebind({}, "gone", lambda stock: stock)
