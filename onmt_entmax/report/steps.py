"""From forced decoding to blocks of choices: what a picture such as the paper's Fig. 2 shows, whatever draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from onmt_entmax.errors import UserError
from onmt_entmax.report.readers import pick
from onmt_entmax.report.text import UNK, count, is_characters, join, percent, percent_of_log, visible

MAX_CHOICES = 6
MAX_STEPS = 120


@dataclass
class Choice:
    """One alternative, or a stretch without one.

    Attributes:
        percent: its probability as shown; empty where it is the only choice.
        gold: whether it is the forced token.
    """

    text: str
    percent: str
    gold: bool


@dataclass
class Block:
    """The choices at one step, the most probable first, or a joined stretch of single choices.

    Attributes:
        choices: at least one.
        more: how many choices are not shown, in words; or empty.
    """

    choices: list[Choice]
    more: str = ""

    @property
    def single(self) -> bool:
        """Whether the model has no choice here and takes what is forced."""
        return len(self.choices) == 1 and not self.more and not self.choices[0].percent


@dataclass
class Forced:
    """What to draw of one forced decoding; ``notes`` are the probability of the whole and what is left out."""

    blocks: list[Block]
    notes: list[str] = field(default_factory=list)
    source: Optional[list[str]] = None


def read_forced(
    path: Path, line: Optional[int] = None, max_choices: int = MAX_CHOICES, max_steps: int = MAX_STEPS
) -> Forced:
    """Read the forced decoding of an input line, or of the first, from a file of ``onmt_entmax force``."""
    found = pick(path, line, ("forced",), lambda example: bool(example.get("steps")), "forced decoding")
    return forced_of(found, max_choices, max_steps)


def forced_of(example: dict[str, Any], max_choices: int = MAX_CHOICES, max_steps: int = MAX_STEPS) -> Forced:
    """Make the blocks of an example with ``steps``; the gold token is always among the choices shown."""
    steps = example.get("steps")
    if not steps:
        raise UserError(f"input line {example['line']}: no `steps` of forced decoding to show.")
    characters = is_characters([step["token"] for step in steps])
    blocks: list[Block] = []
    stretch: list[str] = []
    for step in steps[:max_steps]:
        if step["support_size"] == 1 and step["prob"] > 0:
            stretch.append(step["token"])
            continue
        blocks += [*_joined(stretch, characters), _choices(step, max_choices)]
        stretch = []
    blocks += _joined(stretch, characters)
    return Forced(blocks, _notes(example, steps, max_steps), example.get("source"))


def _joined(tokens: Sequence[str], characters: bool) -> list[Block]:
    return [Block([Choice(join(tokens, characters), "", True)])] if tokens else []


def _choices(step: dict[str, Any], max_choices: int) -> Block:
    support = sorted(step["support"], key=lambda entry: -entry["prob"])
    shown = support[:max_choices]
    unknown = step.get("unknown", False)  # then the token has the probability of `<unk>`
    gold = UNK if unknown else step["token"]
    if all(entry["token"] != gold for entry in shown):
        shown = [*shown[: max_choices - 1], {"token": gold, "prob": step["prob"]}]
    choices = [Choice(visible(entry["token"]), percent(entry["prob"]), entry["token"] == gold) for entry in shown]
    if unknown:
        named = f"{visible(step['token'])} (unknown)"
        choices = [Choice(named, choice.percent, True) if choice.gold else choice for choice in choices]
    hidden = step["support_size"] - sum(entry["prob"] > 0 for entry in shown)
    return Block(choices, f"+ {hidden:,} more" if hidden > 0 else "")


def _notes(example: dict[str, Any], steps: Sequence[dict[str, Any]], max_steps: int) -> list[str]:
    single = sum(step["support_size"] == 1 and step["prob"] > 0 for step in steps)
    notes = [f"{single} of {count(len(steps), 'step')} without a choice."]
    impossible = [step["token"] for step in steps if step["prob"] == 0]
    if impossible:
        words = ", ".join(visible(token) for token in impossible[:5])
        notes.append(f"The model holds this target impossible: probability 0% for {words}.")
    elif example.get("log_prob") is not None:
        notes.append(f"Probability of the whole target: {percent_of_log(example['log_prob'])}.")
    if len(steps) > max_steps:
        notes.append(f"Cut: the first {max_steps} of {count(len(steps), 'step')} are shown.")
    return notes
