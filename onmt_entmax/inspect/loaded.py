"""One checkpoint as the page tries it: its input, its searches and its attention, one request at a time."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.inspect.completing import Completer, certificate_class
from onmt_entmax.inspect.session import Session, Watched
from onmt_entmax.inspect.texts import Tokens, texts_of
from onmt_entmax.plugin.head_measures import head_attention, head_places
from onmt_entmax.plugin.models import Models, Text
from onmt_entmax.search.beam import beam_search
from onmt_entmax.search.exact import exact_search
from onmt_entmax.search.forced import attend
from onmt_entmax.search.result import attention_rows, certificate_record, tree_records
from onmt_entmax.search.settings import SearchSettings

LIMITS = {
    "source_characters": 2000,
    "source_tokens": 250,
    "target_characters": 2000,
    "beam_size": 50,
    "max_length": 250,
    "expansions": 10_000,
    "seconds": 20,
    "hypotheses": 1000,
}
SEARCHES = ("beam", "exact", "support")
NEXT_TOKENS = 50
INPUTS = 4  # whose states are kept
STATE_BYTES = 1 << 27  # of each
CONTEXT = "context_attention"

CLASSES = {
    "single": "The model holds exactly one output possible for this input; everything else has probability zero.",
    "complete": "These are all the outputs that the model holds possible; everything else has probability zero.",
    "optimal": "No output is more probable than the first one, but there are outputs that are not listed.",
    "uncertified": "The search dropped something that may be more probable than the first output.",
}


class Loaded:
    """A checkpoint, or an ensemble of several.

    Args:
        number: its place on the page, from 0.
        paths: of the checkpoints.
        prepared: the folder that its training text was prepared in, for running text.

    Raises:
        UserError: what cannot be loaded, or does not fit.
    """

    def __init__(self, number: int, paths: Sequence[str | os.PathLike[str]], prepared: Path | None = None) -> None:
        self.number, self.name = number, "+".join(Path(path).name for path in paths)
        self.paths = [os.fspath(path) for path in paths]
        self.models = Models(self.paths)
        source, self.target = (list(self.models.vocabs[side].ids_to_tokens) for side in ("src", "tgt"))
        self.texts: Tokens = texts_of(self.name, source, self.target, prepared)
        self._source_types = len(source)
        self.lock = threading.Lock()
        self._sessions: OrderedDict[tuple[str, ...], Session] = OrderedDict()
        self._heads = head_places(self.models.members[0]) if len(self.models.members) == 1 else {}
        self.attentions = self._attentions()

    def describe(self) -> dict[str, Any]:
        """What ``/api/models`` says of it."""
        return {
            "id": self.number,
            "name": self.name,
            "alphas": self.models.alphas,
            "source": self.texts.kind,
            "source_types": self._source_types,
            "target_types": len(self.target),
            "languages": self.texts.languages,
            "tags": self.texts.tags,
            "attention": self.attentions,
            "joiner": self.texts.joiner,
        }

    def _attentions(self) -> list[dict[str, Any]]:
        """Which attentions there are, with their numbers of layers and heads, and with each head's alpha."""
        if self._heads:
            return [
                {"name": name, "layers": len(alphas), "heads": len(alphas[0]), "alphas": alphas}
                for name, alphas in self._heads.items()
            ]
        # others say when they are asked; an input of one token will do
        vocabs = self.models.vocabs or {}
        vocabularies = (vocabs["src"], *vocabs.get("src_feats", []))
        scorer = self.models.encode([[[len(one.ids_to_tokens) - 1 for one in vocabularies]]])
        (weights,) = attend(scorer, [[]], [0], self.models.start, self.models.eos)
        return [] if weights is None else [{"name": CONTEXT, "layers": 1, "heads": 1}]

    def source(self, given: Any) -> tuple[list[str], list[str]]:
        """The tokens of an input as the page sends it, and those that the model does not know.

        Raises:
            UserError: nothing to translate, or too much.
        """
        if not isinstance(given, dict):
            raise UserError("`input` is missing, or is no object.")
        longest = max((len(value) for value in given.values() if isinstance(value, (str, list))), default=0)
        if longest > LIMITS["source_characters"]:
            raise UserError(f"The input has {longest} characters; at most {LIMITS['source_characters']} are taken.")
        tokens = self.texts.source(given)
        if not tokens:
            raise UserError("The input is empty.")
        if len(tokens) > LIMITS["source_tokens"]:
            raise UserError(f"The input has {len(tokens)} tokens; at most {LIMITS['source_tokens']} are taken.")
        return tokens, Text(self.models, [tokens]).unknown[0]

    def target_ids(self, tokens: Sequence[str], name: str) -> list[int]:
        """Indices of output tokens; unknown ones become ``<unk>``.

        Raises:
            UserError: too many, or the end of the output is among them.
        """
        if len(tokens) > LIMITS["max_length"]:
            raise UserError(f"`{name}` has {len(tokens)} tokens; at most {LIMITS['max_length']} are taken.")
        ids = self.models.target_ids(tokens)
        if self.models.eos in ids:
            raise invalid_setting(name, " ".join(tokens), "It must not contain the end of the output.")
        return ids

    @contextmanager
    def session(self, source: Sequence[str], wanted: Callable[[], None]) -> Iterator[Session]:
        """The session of an input; nobody else uses the model meanwhile."""
        with self.held(wanted):
            key = tuple(source)
            session = self._sessions.pop(key, None)
            if session is None:
                scorer = self._encode(source, True, STATE_BYTES)
                session = Session(scorer, self.models.start, self.models.eos)
            self._sessions[key] = session
            while len(self._sessions) > INPUTS:
                self._sessions.popitem(last=False)
            session.wanted = wanted
            yield session

    @contextmanager
    def held(self, wanted: Callable[[], None]) -> Iterator[None]:
        """Hold the model; whoever waits for it asks now and then whether that is still worth it."""
        while not self.lock.acquire(timeout=0.1):
            wanted()
        try:
            wanted()
            yield
        finally:
            self.lock.release()

    def _encode(self, source: Sequence[str], any_order: bool, most_bytes: int | None = None):
        return self.models.encode([self.models.source_ids(source, 1)], any_order, most_bytes)

    def search(
        self,
        source: Sequence[str],
        unknown: Sequence[str],
        prefix: Sequence[str],
        kind: str,
        beam_size: int,
        max_length: int,
        wanted: Callable[[], None],
    ) -> dict[str, Any]:
        """What ``/api/search`` answers, but for the time.

        Args:
            source: tokens.
            unknown: those among them that the model does not know.
            prefix: tokens that every output begins with.
            kind: one of ``SEARCHES``.
            beam_size, max_length: see :class:`~onmt_entmax.search.settings.SearchSettings`.
            wanted: see :class:`~onmt_entmax.inspect.session.Watched`.
        """
        if kind not in SEARCHES:
            raise invalid_setting("search", kind, choices(SEARCHES))
        models, forced = self.models, self.target_ids(prefix, "prefix")
        settings = SearchSettings(
            models.start,
            models.eos,
            beam_size=beam_size,
            n_best=beam_size,
            max_length=max_length,
            forced_prefixes=[forced] if forced else None,
            certificates=True,
            return_attention=True,
            return_tree=kind == "beam",
        )
        with self.session(source, wanted) as session:
            impossible = session.impossible_at((), forced)
            allowed, size = session.next_tokens(forced, NEXT_TOKENS) if impossible is None else ([], 0)
            if kind == "beam":
                (result,) = beam_search(Watched(self._encode(source, False), wanted), settings)
            else:
                scorer = Watched(self._encode(source, True), wanted)
                (result,) = exact_search(scorer, settings, LIMITS["expansions"], kind == "support")
        del result.hypotheses[LIMITS["hypotheses"] :]
        record = certificate_record(result, 1, models.token, prefix)
        for number, (entry, hypothesis) in enumerate(zip(record["hypotheses"], result.hypotheses)):
            entry["text"] = self.texts.text(entry["tokens"])
            entry["attention"] = attention_rows(hypothesis, len(source)) if number < LIMITS["beam_size"] else None
        name = certificate_class(record)
        return {
            **record,
            "source": list(source),
            "tree": None if result.tree is None else tree_records(result.tree, models.token),
            "unknown": list(unknown),
            "prefix": list(prefix),
            "prefix_impossible_at": impossible,
            "next_tokens": [{"token": models.token(token), "prob": prob} for token, prob in allowed],
            "support_size": size,
            "of": len(self.target),
            "not_listed": _not_listed(record),
            "class": name,
            "explanation": explain(name, record),
        }

    def complete(self, source: Sequence[str], text: str, most: int, wanted: Callable[[], None]) -> dict[str, Any]:
        """What ``/api/complete`` answers, but for the time; see :meth:`~.completing.Completer.complete`."""
        if len(text) > LIMITS["target_characters"]:
            raise UserError(f"`text` has {len(text)} characters; at most {LIMITS['target_characters']} are taken.")
        with self.session(source, wanted) as session:
            return self.completer(session, len(source)).complete(text, most)

    def completer(self, session: Session, source_length: int) -> Completer:
        """Completes what is typed beside an input."""
        return Completer(session, self.texts, self.models.target_ids, self.models.token, source_length)

    def attention(
        self,
        source: Sequence[str],
        tokens: Sequence[str],
        name: str,
        layer: int,
        head: int,
        wanted: Callable[[], None],
    ) -> dict[str, Any]:
        """What ``/api/attention`` answers: weights of one head while the model is forced to an output.

        Args:
            source: tokens of the input.
            tokens: of the output.
            name: of the attention.
            layer, head: from 1.
            wanted: see :class:`~onmt_entmax.inspect.session.Watched`.
        """
        known = {entry["name"]: entry for entry in self.attentions}
        if not isinstance(name, str) or name not in known:
            raise invalid_setting("attention", name, choices(known) if known else f"{self.name} has none.")
        for setting, value, most in (("layer", layer, known[name]["layers"]), ("head", head, known[name]["heads"])):
            if not 1 <= value <= most:
                raise invalid_setting(setting, value, f"It must be from 1 to {most}.")
        ids, end = self.target_ids(tokens, "tokens"), self.models.token(self.models.eos)
        with self.held(wanted):
            scorer = self._encode(source, False)
            if name in self._heads:
                weights = head_attention(self.models, scorer, ids, name, layer, head)
            else:
                (weights,) = attend(Watched(scorer, wanted), [ids], [0], self.models.start, self.models.eos)
        outputs, inputs = [*tokens, end], [self.models.token(self.models.start), *tokens]
        sides = {CONTEXT: (outputs, source), "decoder_self_attention": (outputs, inputs)}
        queries, keys = sides.get(name, (source, source))
        return {"queries": list(queries), "keys": list(keys), "weights": weights[:, : len(keys)].tolist()}


def explain(name: str, record: dict[str, Any]) -> str:
    """A sentence on a certificate for people."""
    if name == "void":
        return f"Nothing is known for certain: {record['reason']}."
    sentence = CLASSES[name]
    if name == "complete" and (missing := _not_listed(record)):
        sentence = f"The model holds exactly {record['found']} outputs possible; {missing} of them are not listed here."
    if name in ("optimal", "uncertified") and record["mass_dropped"]:
        sentence += f" What it did not find has {_percent(record['mass_dropped'])} of the probability."
    return f"After this beginning: {sentence[0].lower()}{sentence[1:]}" if "prefix_log_prob" in record else sentence


def _not_listed(record: dict[str, Any]) -> int:
    """Finished outputs that were found and are not among those listed."""
    return max((record["found"] or 0) - sum(entry["finished"] for entry in record["hypotheses"]), 0)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if share >= 0.001 else "less than 0.1%"


def _tell_apart(loaded: Sequence[Loaded]) -> None:
    """Give models whose files have one name those of as many folders as it takes, one model given twice its number."""
    for depth in range(2, 1 + max(len(Path(path).parts) for one in loaded for path in one.paths)):
        known = [(one.name, one.paths) for one in loaded]
        for one in loaded:
            if any(name == one.name and paths != one.paths for name, paths in known):
                one.name = "+".join(str(Path(*Path(path).parts[-depth:])) for path in one.paths)
    names = [one.name for one in loaded]
    for one in loaded:
        if names.count(one.name) > 1:
            one.name += f" ({one.number + 1})"


def check_side_by_side(loaded: Sequence[Loaded]) -> None:
    """Refuse models that cannot stand side by side: another kind of input, or another target vocabulary.

    Those whose files have one name are told apart by their folders, one model given twice by its number.

    Raises:
        UserError: naming both and what differs.
    """
    first = loaded[0]
    _tell_apart(loaded)
    for other in loaded[1:]:
        if other.texts.kind != first.texts.kind:
            raise UserError(
                f"{other.name}: its input is {other.texts.kind}, that of {first.name} {first.texts.kind}; "
                "models side by side need one kind."
            )
        known = set(other.target)
        missing = [token for token in first.target if token not in known]
        if missing or len(first.target) != len(other.target):
            more = f"; it lacks {', '.join(missing[:3])}" if missing else ""
            raise UserError(
                f"{other.name}: its target vocabulary ({len(other.target)} tokens) is not that of {first.name} "
                f"({len(first.target)}){more}; models side by side need one."
            )
