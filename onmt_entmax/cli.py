"""The command ``onmt_entmax SUBCOMMAND``, e.g. ``onmt_entmax doctor``.

Each subcommand is a module with ``add_arguments(parser)`` and ``run(args) -> int``; only the one asked for is
imported, so that ``onmt_entmax --help`` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from onmt_entmax.errors import UserError
from onmt_entmax.files import check_output, inputs_kept

# subcommand -> what it does
SUBCOMMANDS = {
    "doctor": "say what is installed and whether OpenNMT-py knows the plugin",
    "force": "probability of given targets with the alternatives at each step",
    "trace": "the whole beam search of an input as a tree",
    "sparsity": "mean attended source words and mean target types (Table 3)",
    "heads": "what each head of a Transformer looks at",
    "steps": "epochs to steps for onmt_train",
    "prepare": "turn a corpus into training text: inflection, translation",
    "overview": "one row per run: accuracy, sparsity, certificate rates",
    "evaluate": "score predictions (inflection, translation), or a model's search",
    "accept": "split predictions into those to accept and those to review",
    "table": "the paper's tables from result files, the paper's numbers beside ours",
    "figure": "the paper's figures and others: beam, forced, attention, ...",
    "report": "one self-contained HTML page of a run",
    "inspect": "a page in the browser on which models are tried",
    "simulate-completion": "how much typing a model's completions would save a translator",
    "uncertain": "the inputs of which a model was least certain",
}
SHARED = {"overview": "runs", "report": "runs", "simulate-completion": "inspect"}  # modules that have several


class Parser(argparse.ArgumentParser):
    """Spells long options with hyphens (``--beam-size``); the older ``--beam_size`` is accepted too."""

    def add_argument(self, *names: str, **settings) -> argparse.Action:
        """Add an argument under its name with hyphens; its value keeps the name with underscores."""
        return super().add_argument(*dict.fromkeys(map(_hyphens, names)), **settings)

    def parse_known_args(self, args=None, namespace=None):
        """See ``argparse``; what follows ``--`` is left as it is."""
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)
        return super().parse_known_args([*map(_hyphens, words[:end]), *words[end:]], namespace)


def _hyphens(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


class _ShowVersion(argparse.Action):
    """Finds the version only when asked for it."""

    def __call__(self, parser, namespace, values, option_string=None):
        from onmt_entmax.version import version

        print(f"onmt_entmax {version()}")
        parser.exit()


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """Make the parser; only ``command``'s own arguments are filled in."""
    parser = Parser(prog="onmt_entmax", description="Sparse sequence-to-sequence models.")
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version of the code and end")
    subparsers = parser.add_subparsers(dest="command", metavar="SUBCOMMAND", required=True)
    for name, description in SUBCOMMANDS.items():
        subparser = subparsers.add_parser(name, help=description, description=description, allow_abbrev=False)
        if name == command:
            _functions(name)[0](subparser)
    return parser


def _functions(command: str) -> tuple:
    """A subcommand's ``add_arguments`` and ``run``; in a module of several ``add_NAME_arguments`` and ``run_NAME``."""
    module = importlib.import_module(f"onmt_entmax.commands.{SHARED.get(command, command)}")
    name = command.replace("-", "_")
    names = (f"add_{name}_arguments", f"run_{name}") if command in SHARED else ("add_arguments", "run")
    return tuple(getattr(module, one) for one in names)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand. Returns the exit status: 2 with one line on standard error for a mistake of the user."""
    _show_every_character()
    argv = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in argv if not word.startswith("-")), None)
    args = build_parser(command).parse_args(argv)
    try:
        _check_outputs(args)
        with inputs_kept():
            return _functions(args.command)[1](args)
    except BrokenPipeError:  # `onmt_entmax ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (UserError, OSError) as error:
        print(f"onmt_entmax {args.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"onmt_entmax {args.command}: interrupted", file=sys.stderr)
        return 130


def _check_outputs(args: argparse.Namespace) -> None:
    """Refuse an output that is one of the files or folders that the command is given to read."""
    outputs = {name: getattr(args, name, None) for name in ("output", "json", "submission", "weights")}
    for name, output in outputs.items():
        # `prepare` may write beside its data; it looks at single files itself, as those do whose `output` is a prefix
        beside = args.command == "prepare" and os.path.isdir(output or "")
        if output is None or beside or (args.command in ("accept", "uncertain") and name == "output"):
            continue
        for setting, value in vars(args).items():
            for path in value if isinstance(value, list) else [value]:
                if setting not in outputs and isinstance(path, (str, os.PathLike)):
                    check_output(name, output, setting, path)


def _show_every_character() -> None:
    """Write files and pipes in UTF-8, whatever the locale; a terminal that lacks a character shows its escape."""
    for stream in (sys.stdout, sys.stderr):
        if not hasattr(stream, "reconfigure"):  # something else has taken its place
            continue
        if stream.isatty():
            stream.reconfigure(errors="backslashreplace")
        else:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
