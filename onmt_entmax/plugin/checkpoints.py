"""Loading checkpoints: safe on both stacks, and one line that names the file where it cannot be loaded."""

from __future__ import annotations

import itertools
import pickle
import pickletools
import re
import zipfile
import zlib
from pathlib import Path

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.alphas import PLACES, alpha_of
from onmt_entmax.plugin.parsing import one_line_errors

# what a checkpoint of OpenNMT-py refers to by name; anything else could run code while it is loaded
_SAFE_GLOBALS = {
    "argparse Namespace",
    "collections OrderedDict",
    "collections Counter",
    "collections defaultdict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    "torch Size",
    "torch device",
    "torch.serialization _get_layout",
    "_codecs encode",
    "__builtin__ set",
    "builtins set",
    "__builtin__ dict",
    "builtins dict",
}


# opcodes that name a callable: by an argument that can be read here, or by one computed while loading
_BY_NAME, _COMPUTED = {"GLOBAL", "INST"}, {"STACK_GLOBAL", "EXT1", "EXT2", "EXT4"}


def _is_safe(name: str) -> bool:
    import torch

    module, _, attribute = name.partition(" ")
    if name in _SAFE_GLOBALS:
        return True
    # not just any function of torch: `torch.load` reads another file, `torch.save` writes one
    is_dtype = isinstance(getattr(torch, attribute, None), torch.dtype)
    return module == "torch" and (is_dtype or re.fullmatch(r"[A-Z][A-Za-z0-9]*Storage", attribute) is not None)


def check_globals(path: Path) -> None:
    """Refuse a checkpoint whose pickle names anything but plain data, by reading the pickle without running it."""
    try:
        with zipfile.ZipFile(path) as archive:
            # all of them: which one torch reads depends on the folder inside the archive, and names may occur twice
            pickles = [archive.read(entry) for entry in archive.infolist() if entry.filename.endswith(".pkl")]
        if not pickles:
            raise zipfile.BadZipFile("no pickle")
        for opcode, argument, _ in itertools.chain.from_iterable(map(pickletools.genops, pickles)):
            if opcode.name in _COMPUTED or (opcode.name in _BY_NAME and not _is_safe(argument)):
                name = argument if opcode.name in _BY_NAME else "a computed name"
                raise UserError(f"Refused to load {path}: it would run code ({name}).")
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, zlib.error, RuntimeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"Cannot load {path}: it is truncated, or not a checkpoint written by OpenNMT-py.") from error


def load_checkpoint_with(stock, path: str):
    """Load through the stock function, every failure as one line that names the file.

    Raises:
        UserError: the file is missing, truncated, foreign, or would run code.
    """
    import torch

    file = Path(path)
    if file.is_dir():
        raise UserError(f"Cannot load {path}: it is a folder; a checkpoint is needed.")
    if not file.is_file():
        best = " A training with `keep_best` writes it." if file.name.endswith("_best.pt") else ""
        raise UserError(f"Cannot load {path}: there is no such file.{best}")
    check_globals(file)
    try:
        checkpoint = stock(path)
    except KeyError as error:
        raise UserError(
            f"Cannot load {path}: it is not a checkpoint of OpenNMT-py (it has no `{error.args[0]}`)."
        ) from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, AttributeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise UserError(f"Cannot load {path}: {error.strerror}.") from error
        raise UserError(
            f"Cannot load {path}: it is truncated, or not a checkpoint written by OpenNMT-py "
            f"({type(error).__name__} with torch {torch.__version__})."
        ) from error
    if "vocab" not in checkpoint:
        raise UserError(f"Cannot load {path}: it is not a checkpoint of OpenNMT-py (it has no `vocab`).")
    return checkpoint


def load_checkpoint(stock):
    def load_checkpoint(ckpt_path):
        return load_checkpoint_with(stock, ckpt_path) if ckpt_path else stock(ckpt_path)

    return one_line_errors(load_checkpoint)


def refuse_sparse_export(opt) -> None:
    """Refuse to export a sparse model."""
    for place in PLACES:
        alpha = alpha_of(opt, place)
        if alpha != 1:
            raise UserError(
                f"CTranslate2 decodes with softmax, but this model was trained with `{place}_alpha` {alpha}."
            )


def _check_export(stock):
    def check_opt(opt, *args, **kwargs):
        refuse_sparse_export(opt)
        return stock(opt, *args, **kwargs)

    return check_opt


def refuse_exports(rebind) -> None:
    """Let ``onmt_release_model --format ctranslate2`` refuse sparse models; ``rebind`` is that of the table."""
    try:
        import ctranslate2.converters.opennmt_py as converter
    except ImportError:  # without its converters it cannot export anything
        return
    rebind(converter, "check_opt", _check_export)


KEY = "entmax_training"  # what training keeps in a checkpoint; stock passes over it
