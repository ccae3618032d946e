"""What stock's commands say of a user's mistake: one line with the nearest valid name; and which options were given."""

from __future__ import annotations

import difflib
import functools
import io
import os
import re
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterable

import configargparse

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.files import parse_yaml

GIVEN = "_given"  # in the options of `onmt_train`: names the user gave, on the command line or in a YAML

_KINDS = {"int": "a whole number", "float": "a number"}


def running_command() -> str | None:
    """The stock command this process runs (``onmt_train`` ...), or None under somebody's own Python program."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name.startswith("onmt.bin."):
        return "onmt_" + spec.name.rsplit(".", 1)[1]
    name = os.path.basename(sys.argv[0] if sys.argv else "")
    return name if name.startswith("onmt_") and not name.startswith("onmt_entmax") else None


def one_line_errors(function: Callable) -> Callable:
    """Let a stock command end with one line on a :class:`UserError` (status 2) or Ctrl-C (130); programs get both.

    So do threads other than the main one: the server's, which answer.
    """

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except (UserError, KeyboardInterrupt) as error:
            command, interrupted = running_command(), isinstance(error, KeyboardInterrupt)
            if command is None or not (interrupted or threading.current_thread() is threading.main_thread()):
                raise
            text, status = ("interrupted", 130) if interrupted else (str(error), 2)
            print(f"{command}: {' '.join(text.split())}", file=sys.stderr, flush=True)
            raise SystemExit(status) from error

    return wrapped


class UnsetStr(str):
    """A default that can be told from the same value given by the user."""

    def __str__(self) -> UnsetStr:  # argparse converts string defaults with str(), which must keep the type
        return self


class UnsetFloat(float):
    """A default that can be told from the same value given by the user."""


def is_unset(value: object) -> bool:
    """Whether an option still has its default because the user said nothing."""
    return isinstance(value, (UnsetStr, UnsetFloat))


def given_options(opt: Namespace) -> frozenset[str]:
    """The options that the user gave; none for options that no parser of ``onmt_train`` read."""
    return frozenset(getattr(opt, GIVEN, ()))


def _keys(parser) -> set[str]:
    return {name.lstrip("-") for action in parser._actions for name in action.option_strings}


def _known_keys() -> set[str]:
    """Every key that some stock command reads: one YAML often serves several commands."""
    import onmt.opts
    from onmt.utils.parse import ArgumentParser

    keys = set()
    for fill in (
        onmt.opts.train_opts,
        onmt.opts.translate_opts,
        lambda parser: onmt.opts.data_prepare_opts(parser, build_vocab_only=True),
    ):
        parser = ArgumentParser()
        fill(parser)
        keys |= _keys(parser)
    return keys


def nearest(name: str, valid: Iterable[str]) -> str:
    """`` Did you mean `...`?``, or nothing where no valid name is near."""
    near = difflib.get_close_matches(name, sorted(valid), n=1, cutoff=0.5)
    return f" Did you mean `{near[0]}`?" if near else ""


def _refuse_unknown(unknown: list[str], known: set[str]) -> None:
    for index, word in enumerate(unknown):
        if not word.startswith("-") or word.lstrip("-")[:1].isdigit():
            if index == 0:
                raise UserError(f"What does {word!r} belong to? No option takes it.")
            continue
        key = word.lstrip("-").split("=", 1)[0]
        if key not in known:
            raise UserError(f"Unknown option `{key}` in the configuration or on the command line.{nearest(key, known)}")


def _explain(parser, message: str) -> UserError:
    """The error for what argparse and configargparse say."""
    message = " ".join(message.split())
    if message.startswith("unrecognized arguments: "):
        words = message.split(": ", 1)[1].split(" ")
        _refuse_unknown(words, _keys(parser))
        return UserError(f"Unknown: {' '.join(words)}.")
    if message.startswith("the following arguments are required: "):
        missing = [name.split("/")[0].lstrip("-") for name in message.split(": ", 1)[1].split(", ")]
        return UserError(f"Missing: {', '.join(f'`{name}`' for name in missing)}.")
    found = re.match(r"Unable to open config file: (.*?)\. Error: (?:\[Errno \d+\] )?(.*?)(?:: '.*')?$", message)
    if found:
        return invalid_setting("config", found[1], f"It cannot be read: {found[2]}.")
    found = re.match(r"argument ([^:]+): (.*)", message)
    if not found:
        return UserError(message)
    name, problem = found[1].split("/")[0].lstrip("-"), found[2]
    choice = re.match(r"invalid choice: ('[^']*'|\"[^\"]*\"|[^ ,]+)", problem)
    kind = re.match(r"invalid (\w+) value: (.*)", problem)
    if choice:
        value = choice[1].strip("'\"")
        valid = next(list(action.choices) for action in parser._actions if f"--{name}" in action.option_strings)
        return invalid_setting(name, value, choices(valid) + nearest(value, map(str, valid)))
    if kind:
        return invalid_setting(name, kind[2].strip("'\""), f"It must be {_KINDS.get(kind[1], kind[1])}.")
    return UserError(f"Invalid setting for `{name}`: {problem}.")


def error(stock):
    def error(self, message):
        raise _explain(self, message)

    return one_line_errors(error)


def _refuse_misspelt(parser, words: Iterable[str]) -> None:
    """Refuse ``-outptu``, which argparse reads as ``-o utptu``."""
    names = _keys(parser)
    for word in words:
        name = word.lstrip("-").split("=", 1)[0]
        if word[:1] != "-" or word[:2] == "--" or word[:2] not in parser._option_string_actions or len(name) < 2:
            continue
        near = difflib.get_close_matches(name, sorted(valid for valid in names if len(valid) > 2), n=1, cutoff=0.7)
        if near and not any(valid.startswith(name) for valid in names):
            raise UserError(f"Unknown option `{name}`. Did you mean `{near[0]}`?")


class ConfigParser(configargparse.YAMLConfigFileParser):
    """Reads ``-config``; of a key that stands twice stock takes the last one and says nothing."""

    def parse(self, stream):
        """The settings of a YAML; raises :class:`UserError`, see :func:`onmt_entmax.files.parse_yaml`."""
        text = stream.read()
        parse_yaml(text, getattr(stream, "name", "config"))
        return super().parse(io.StringIO(text))


def parse_known_args(stock):
    def parse_known_args(self, *args, **kwargs):
        self._config_file_parser = ConfigParser()
        words = args[0] if args else kwargs.get("args")
        _refuse_misspelt(self, sys.argv[1:] if words is None else words)
        for_training = getattr(self, "_onmt_entmax_trains", False)
        given, get_values = set(), self._get_values

        def note(action, strings):  # called for what stands there, not for defaults
            given.add(action.dest)
            return get_values(action, strings)

        self._get_values = note
        try:
            options, unknown = stock(self, *args, **kwargs)
        finally:
            del self._get_values
        if for_training:
            setattr(options, GIVEN, sorted(given))
            if unknown:
                _refuse_unknown(unknown, _known_keys())
        return options, unknown

    return one_line_errors(parse_known_args)


def train_opts(stock):
    def train_opts(parser):
        stock(parser)
        parser._onmt_entmax_trains = True
        for action in list(parser._actions):  # `-override_opts`, like all others with one dash as with two
            for name in [name for name in action.option_strings if name.startswith("--")]:
                if name[1:] not in parser._option_string_actions:
                    action.option_strings.append(name[1:])
                    parser._option_string_actions[name[1:]] = action

    return train_opts


def data_prepare_opts(stock):
    def data_prepare_opts(parser, build_vocab_only=False):
        stock(parser, build_vocab_only=build_vocab_only)
        if build_vocab_only:
            parser._onmt_entmax_trains = True

    return data_prepare_opts
