"""From a search to a tree of segments and their places: what a picture of it shows, whatever draws the picture.

A segment is a stretch of tokens without a choice inside it. The tree comes from the prefixes that a search recorded, or
from the finished hypotheses of a certificate, whose common prefixes make a tree too. Places are in any unit, points for
a figure, cells for a terminal: ``side``, where the first branch continues on its parent's line and the others go below,
as in the paper's Fig. 1; or ``indented``, one branch per line, wrapped, for trees too wide for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from onmt_entmax.errors import UserError
from onmt_entmax.report.readers import pick
from onmt_entmax.report.text import EOS, Measure, count, is_characters, join, percent, percent_of_log, wrap

MAX_LEAVES = 16
ENDS = {
    "finished": "",
    "live": " ✕",
    "dropped": " ✕",
    "cut": " … (length limit)",
    "stopped": " … (search ended)",
}
LEGEND_DROPPED = "✕ dropped by the search."


@dataclass
class Segment:
    """A stretch of tokens without a choice that is shown.

    Attributes:
        tokens: in order; empty only for a root that branches at once.
        branch: probability of entering it, given what precedes; None for the root.
        log_prob: of the whole prefix up to its end.
        status: of its last prefix: ``finished``, ``live``, ``dropped``, ``cut``, ``stopped``.
        children: what may follow, the most probable first.
        hidden: continuations inside it or at its end that are not shown.
    """

    tokens: list[str]
    branch: Optional[float]
    log_prob: float
    status: str
    children: list[Segment] = field(default_factory=list)
    hidden: int = 0

    @property
    def label(self) -> str:
        """Its branch's probability as shown."""
        return "" if self.branch is None else percent(self.branch)

    def leaves(self) -> Iterator[Segment]:
        """All segments without a child, in the order shown."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()


@dataclass
class Tree:
    """What to draw of one search.

    Attributes:
        root: the first segment.
        characters: whether tokens are characters, joined without blanks.
        notices: what is left out, in sentences.
        statement: the certificate in a sentence or two.
        certified: whether the best hypothesis is known to be the best.
        source: tokens of the input, or None.
        exact: whether a prefix has its own probability; otherwise that of the listed strings that begin with it.
    """

    root: Segment
    characters: bool
    notices: list[str]
    statement: str
    certified: bool
    source: Optional[list[str]] = None
    exact: bool = True

    def text(self, segment: Segment, marked: bool = True) -> str:
        """The tokens of a segment as they are shown, with a mark of how it ended."""
        return join(segment.tokens, self.characters) + (ENDS[segment.status] if marked and not segment.children else "")

    @property
    def shows_totals(self) -> bool:
        """Whether the probabilities of whole strings say more than the labels on the branches do."""
        if not self.root.children or self.root.hidden or not self.exact:
            return True
        return any(child.children or child.hidden for child in self.root.children)


@dataclass
class _Node:
    token: str
    log_prob: float
    status: str
    children: list[_Node] = field(default_factory=list)


def read_tree(path: Path, line: Optional[int] = None, max_leaves: int = MAX_LEAVES) -> Tree:
    """Read the tree of an input line, or of the first, from a file of traces or certificates."""
    found = pick(path, line, ("trace", "certificate"), lambda example: bool(example.get("certificate")), "a search")
    return tree_of(found, max_leaves)


def tree_of(example: dict[str, Any], max_leaves: int = MAX_LEAVES) -> Tree:
    """Make the tree of an example: of its ``tree``, or else of its certificate's hypotheses.

    It shows at most ``max_leaves`` ends: the finished ones first, the most probable of each kind.
    """
    certificate = example.get("certificate") or {}
    exact, notices = True, []
    if example.get("tree"):
        root = _from_nodes(example["tree"])
    elif hypotheses := certificate.get("hypotheses"):
        root = _from_hypotheses(hypotheses)
        unlisted = (certificate.get("found") or 0) - len(hypotheses)
        exact = bool(certificate.get("complete")) and unlisted == 0
        if unlisted > 0:
            notices.append(f"{count(unlisted, 'finished string')} not listed in the certificate.")
        if not exact and len(hypotheses) > 1:
            notices.append("A prefix has the probability of the listed strings that begin with it, a lower bound.")
    else:
        raise UserError(f"input line {example['line']}: neither a search tree nor a hypothesis to show.")
    shown, finished, dropped = _prune(root, max_leaves)
    segment = _segment(root, None, shown)
    if finished:
        notices.append(f"{count(finished, 'finished string')} of lower probability not shown.")
    if dropped:
        notices.append(f"{count(dropped, 'prefix', 'prefixes')} that the search dropped not shown.")
    statement, certified = certificate_statement(certificate)
    tokens = [node.token for node in _walk(root)]
    return Tree(segment, is_characters(tokens), notices, statement, certified, example.get("source"), exact)


def certificate_statement(certificate: dict[str, Any]) -> tuple[str, bool]:
    """Say in words what a certificate certifies, and whether that is the best hypothesis."""
    if not certificate:
        return "No certificate was asked for.", False
    if certificate.get("reason"):
        return f"No certificate: {certificate['reason']}.", False
    prefix = " after the forced prefix" if certificate.get("conditional_on_prefix") else ""
    if certificate.get("complete"):
        found = certificate["found"]
        if found == 1:
            return f"Certificate: complete. This one string has all the probability{prefix}.", True
        return f"Certificate: complete. Exactly {found:,} strings have non-zero probability{prefix}.", True
    dropped, found = certificate.get("best_dropped_log_prob"), certificate.get("mass_found")
    mass = "" if found is None else f" Finished strings hold {percent(found)} of the probability{prefix}."
    bound = "" if dropped is None else f" (of at most {percent_of_log(dropped)} each)"
    if certificate.get("optimal"):
        what = f"None of what was dropped{bound} is more probable than the best string.{mass}"
        return f"Certificate: optimal. {what}", True
    return f"Not certified: what was dropped{bound} may hold a more probable string.{mass}", False


def _from_nodes(nodes: Sequence[dict[str, Any]]) -> _Node:
    made = [_Node(node["token"], node["log_prob"], node["status"]) for node in nodes]
    for node, entry in zip(made[1:], nodes[1:]):
        made[entry["parent"]].children.append(node)
    return made[0]


def _from_hypotheses(hypotheses: Sequence[dict[str, Any]]) -> _Node:
    """Join hypotheses at their common prefixes; a prefix has the probability of all its hypotheses together.

    That is the prefix's own probability where these are all that there are, and a lower bound of it otherwise.
    """
    root = _Node("<s>", 0.0, "live")
    for hypothesis in hypotheses:
        node = root
        tokens = [*hypothesis["tokens"], *([EOS] if hypothesis["finished"] else [])]
        for token in tokens:
            child = next((child for child in node.children if child.token == token), None)
            if child is None:
                child = _Node(token, -math.inf, "live")
                node.children.append(child)
            node = child
        node.status = "finished" if hypothesis["finished"] else "stopped"
        node.log_prob = hypothesis["log_prob"]
    for node in reversed(list(_walk(root))):
        if node.children:
            total = math.fsum(math.exp(child.log_prob) for child in node.children)
            node.log_prob = math.log(total) if total > 0 else max(child.log_prob for child in node.children)
    root.log_prob = 0.0  # that of the empty prefix, also where strings are missing
    return root


def _walk(root: _Node) -> Iterator[_Node]:
    """All nodes, parents first, without recursion: a path may have hundreds of tokens."""
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(node.children)


def _prune(root: _Node, max_leaves: int) -> tuple[set[int], int, int]:
    """Choose the nodes to show: the paths to the best leaves, finished ones first.

    Returns:
        Identities of the nodes to show; how many finished leaves and how many others are left out.
    """
    parents: dict[int, _Node] = {}
    leaves = []
    for node in _walk(root):
        for child in node.children:
            parents[id(child)] = node
        if not node.children:
            leaves.append(node)
    ranked = sorted(leaves, key=lambda leaf: (leaf.status != "finished", -leaf.log_prob))
    shown: set[int] = set()
    for leaf in ranked[:max_leaves]:
        up: Optional[_Node] = leaf
        while up is not None and id(up) not in shown:
            shown.add(id(up))
            up = parents.get(id(up))
    rest = ranked[max_leaves:]
    finished = sum(leaf.status == "finished" for leaf in rest)
    return shown, finished, len(rest) - finished


def _segment(node: _Node, parent: Optional[_Node], shown: set[int]) -> Segment:
    """Join nodes up to the next choice that is shown."""
    branch = None if parent is None else math.exp(min(node.log_prob - parent.log_prob, 0.0))
    tokens = [] if parent is None else [node.token]
    hidden = 0
    while True:
        children = [child for child in node.children if id(child) in shown]
        hidden += len(node.children) - len(children)
        if len(children) != 1:
            break
        node = children[0]
        tokens.append(node.token)
    children.sort(key=lambda child: -child.log_prob)
    made = [_segment(child, node, shown) for child in children]
    return Segment(tokens, branch, node.log_prob, node.status, made, hidden)


@dataclass
class Placed:
    """A segment with its place.

    Attributes:
        segment: what it is.
        lines: its text, on one line or wrapped.
        total: probability of the whole prefix, for leaves where it adds something; else empty.
        x: where the text starts.
        row: of its first line, from 0.
        parent: its index in the list, None for the root.
    """

    segment: Segment
    lines: list[str]
    total: str
    x: float
    row: int
    parent: Optional[int] = None


@dataclass
class Layout:
    """All segments in their places; ``width`` and ``rows`` are those of the whole."""

    kind: str
    placed: list[Placed] = field(default_factory=list)
    width: float = 0.0
    rows: int = 0
    total_x: Optional[float] = None  # where the column of totals starts

    def notes(self, tree: Tree) -> list[str]:
        """What is said of the tree below its certificate."""
        dropped = any("✕" in line for place in self.placed for line in place.lines)
        return [LEGEND_DROPPED] * dropped + tree.notices


def lay_out(tree: Tree, measure: Measure, width: float, pad: float) -> Layout:
    """Place the segments of a tree in a width, side by side if that fits; ``pad`` is about a character's width."""
    layout = _side(tree, measure, pad)
    return layout if layout.width <= width else _indented(tree, measure, width, pad)


def _total(tree: Tree, segment: Segment) -> str:
    return percent_of_log(segment.log_prob) if tree.shows_totals and not segment.children else ""


def _side(tree: Tree, measure: Measure, pad: float) -> Layout:
    layout = Layout("side")

    def place(segment: Segment, x: float, row: int, parent: Optional[int]) -> int:
        """Place a segment and what follows it; returns the next free row."""
        text, index = tree.text(segment), len(layout.placed)
        layout.placed.append(Placed(segment, [text], _total(tree, segment), x, row, parent))
        end = x + measure(text)
        layout.width = max(layout.width, end)
        gap = max((measure(child.label) for child in segment.children), default=0.0) + 6 * pad
        for number, child in enumerate(segment.children):
            row = place(child, end + gap, row, index) if number else max(row + 1, place(child, end + gap, row, index))
        return max(row, layout.placed[index].row + 1)

    layout.rows = place(tree.root, 0.0, 0, None)
    _add_totals(layout, measure, pad)
    return layout


def _indented(tree: Tree, measure: Measure, width: float, pad: float) -> Layout:
    layout = Layout("indented")
    totals = max((measure(_total(tree, leaf)) for leaf in tree.root.leaves()), default=0.0)
    available = width - (totals + 2 * pad if totals else 0.0)
    labels = measure("100.0%") + 3 * pad
    step = min(2.5 * pad, 0.4 * available / max(_depth(tree.root), 1))

    def place(segment: Segment, depth: int, row: int, parent: Optional[int]) -> int:
        x = 0.0 if parent is None else (depth - 1) * step + labels + pad
        index = len(layout.placed)
        lines = wrap(tree.text(segment), measure, available - x, tree.characters)
        layout.placed.append(Placed(segment, lines, _total(tree, segment), x, row, parent))
        layout.width = max([layout.width, *(x + measure(line) for line in lines)])
        row += len(lines)
        for child in segment.children:
            row = place(child, depth + 1, row, index)
        return row

    layout.rows = place(tree.root, 0, 0, None)
    _add_totals(layout, measure, pad)
    return layout


def _add_totals(layout: Layout, measure: Measure, pad: float) -> None:
    totals = max(measure(place.total) for place in layout.placed)
    if totals:
        layout.total_x = layout.width + 2 * pad
        layout.width = layout.total_x + totals


def _depth(segment: Segment) -> int:
    return 1 + max((_depth(child) for child in segment.children), default=0)
