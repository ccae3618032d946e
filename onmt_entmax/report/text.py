"""Tokens and numbers as text, and text broken into lines, for whatever shows it."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import Callable, Optional

Measure = Callable[[str], float]  # width of a text

EOS, UNK = "</s>", "<unk>"
SPECIAL = ("<s>", EOS, UNK, "<blank>")


def visible(token: str) -> str:
    """Make every character of a token visible: blanks as ``␣``, controls and unassigned ones as ``⟨u+2028⟩``."""
    text = ""
    for character in token:
        if character in " \u2581":  # a blank, and SentencePiece's mark of one
            text += "␣"
        elif character in "\u200c\u200d" or unicodedata.category(character)[0] not in "CZ":
            text += character  # zero-width (non-)joiners shape the letters around them
        else:
            text += f"⟨u+{ord(character):04x}⟩"
    return text


def is_characters(tokens: Sequence[str]) -> bool:
    """Tell whether a target is spelt one character per token (inflection), so that it is shown without blanks.

    A dense model may allow an odd token of another kind, so nine of ten are enough.
    """
    plain = [token for token in tokens if token not in SPECIAL and not token.startswith("<u+")]
    return bool(plain) and sum(len(token) == 1 for token in plain) >= 0.9 * len(plain)


def join(tokens: Sequence[str], characters: bool) -> str:
    """Join tokens for reading: characters without blanks, words with one, ``</s>`` always apart.

    Subword pieces keep their marks (``@@``): a picture shows what the model chooses from.
    """
    text = ""
    for token in tokens:
        apart = not characters or token == EOS
        text += (" " if text and apart else "") + visible(token)
    return text


def cells(text: str) -> int:
    """Width in a terminal: wide characters (Chinese, Japanese, Korean) take two cells, combining ones none."""
    width = 0
    for character in text:
        if unicodedata.category(character) in ("Mn", "Me", "Cf"):
            continue
        width += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return width


def shorten(text: str, width: int) -> str:
    """Cut the middle of a text so that it fits in ``width`` cells."""
    if cells(text) <= width:
        return text
    head, tail = 0, len(text)
    while cells(text[:head] + text[tail:]) + 1 < width:  # the longer text has more cells: this ends
        head, tail = (head, tail - 1) if len(text) - tail < head else (head + 1, tail)
    return text[:head].rstrip() + "…" + text[tail:].lstrip()


def percent(probability: float) -> str:
    """Format a probability; only exactly 0 and 1 are shown as 0% and 100%, as zeros are the point."""
    if probability == 0:
        return "0%"
    if probability >= 1:
        return "100%"
    if probability < 0.001:
        return "<0.1%"
    if probability > 0.999:
        return ">99.9%"
    return f"{100 * probability:.1f}%"


def percent_of_log(log_prob: float) -> str:
    """Format the probability of a log-probability, with one digit and a power of ten where it is tiny: ``2e-7%``."""
    if log_prob == -math.inf:
        return "0%"
    if log_prob > math.log(0.001):
        return percent(math.exp(min(log_prob, 0.0)))
    exponent = log_prob / math.log(10) + 2
    digit, whole = round(10 ** (exponent % 1)), math.floor(exponent)
    return f"{digit}e{whole}%" if digit < 10 else f"1e{whole + 1}%"


def alpha_name(alpha: float) -> str:
    """The paper's name of a mapping: softmax, sparsemax or ``1.5-entmax``."""
    return {1.0: "softmax", 2.0: "sparsemax"}.get(float(alpha), f"{alpha:g}-entmax")


def alphas_name(output: float, attention: Optional[float], learned: bool = False) -> str:
    """Name a model by its alphas: one name where they are equal; a learned one has no number of its own."""
    if learned:
        return f"output {output:g}, attention learned"
    if output == attention:
        return alpha_name(output)
    return f"output {output:g}, " + ("no attention" if attention is None else f"attention {attention:g}")


def count(number: int, noun: str, plural: str = "") -> str:
    """``1 string``, ``2 strings``, ``17,993 strings``; ``plural`` for nouns that do not take an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def wrap(text: str, measure: Measure, width: float, anywhere: bool = False) -> list[str]:
    """Break a text into lines of at most ``width``, at blanks or ``anywhere``; a word that is too long breaks, too."""
    if measure(text) <= width:
        return [text]
    lines, line = [], ""
    for word in list(text) if anywhere else text.split(" "):
        candidate = line + word if anywhere or not line else f"{line} {word}"
        if line and measure(candidate) > width:
            lines.append(line)
            candidate = word
        while measure(candidate) > width and len(candidate) > 1:
            keep = max(_fitting(candidate, measure, width), 1)
            lines.append(candidate[:keep])
            candidate = candidate[keep:]
        line = candidate
    return [*lines, line]


def _fitting(text: str, measure: Measure, width: float) -> int:
    """How many characters from the start fit."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if measure(text[:middle]) <= width else (low, middle - 1)
    return low


def columns(widths: Sequence[float], available: float, gap: float) -> list[list[int]]:
    """Break a row of boxes into lines that fit; each line has at least one box."""
    lines: list[list[int]] = [[]]
    used = -math.inf
    for index, width in enumerate(widths):
        if lines[-1] and used + gap + width > available:
            lines.append([])
        used = used + gap + width if lines[-1] else width
        lines[-1].append(index)
    return lines
