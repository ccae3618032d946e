"""Completion of a typed text: the words that may come next, the best way to go on, and where the text is impossible.

A half-typed word need not be one of the model's pieces: pieces are searched that spell a word that begins so.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor

from onmt_entmax.inspect.session import Session
from onmt_entmax.inspect.texts import Spelling, Tokens, Typed
from onmt_entmax.search.beam import beam_search
from onmt_entmax.search.result import SearchResult
from onmt_entmax.search.scorer import States, StepOutput
from onmt_entmax.search.settings import SearchSettings
from onmt_entmax.tasks.trust import class_of

BEAM_SIZE = 5
TOGETHER = 8  # prefixes that go through the model at once when words are searched
EXPANSIONS = 64  # prefixes looked at per list of words
WIDTH = 50  # continuations looked at per prefix
SMALL = 1e-3  # share of the best word's probability below which no pieces are followed, where no list can be whole


@dataclass
class Word:
    """A word that may come next; ``tokens`` are its most probable spelling."""

    text: str
    prob: float
    tokens: tuple[int, ...]
    best: float


class Continuation:
    """What follows a prefix of a session, as a scorer of its own: the first step is known already.

    Args:
        session: the model and its input.
        prefix: tokens.
        spelling: of the model's tokens.
        letters: with which the next word must begin.
        begun: whether the prefix ends inside a word.
    """

    batch_size = 1

    def __init__(
        self, session: Session, prefix: Sequence[int], spelling: Spelling, letters: str = "", begun: bool = False
    ) -> None:
        self._session, self._prefix = session, prefix
        self._spelling, self._letters, self._begun = spelling, letters, begun
        scorer = session.scorer
        self.vocab_size, self.device = scorer.vocab_size, scorer.device
        self.dtype, self.mixed_lengths = scorer.dtype, scorer.mixed_lengths
        self._sizes = torch.tensor([len(part) for part in spelling.letters], device=scorer.device)

    def start(self) -> States:
        """See :class:`~onmt_entmax.search.scorer.Scorer`; the first part counts the letters that stand already."""
        self._first: Optional[StepOutput] = self._session.after(self._prefix)
        return (torch.zeros(1, 1, dtype=torch.long, device=self.device), *self._first.states)

    def drop_finished(self, sentences: Sequence[int]) -> None:
        """See :class:`~onmt_entmax.search.scorer.Scorer`; there is one."""

    def step(
        self,
        tokens: Tensor,
        states: States,
        sentences: Tensor,
        parents: Optional[Tensor] = None,
        best: Optional[int] = None,
    ) -> StepOutput:
        """See :class:`~onmt_entmax.search.scorer.Scorer`."""
        spelled, *rest = states
        if self._first is not None:
            known, self._first = self._first, None
            log_probs = self._restrict(known.log_probs.clone(), [0], first=True)
            return StepOutput(log_probs, (spelled, *known.states))
        if parents is not None:
            spelled = spelled.index_select(0, parents)
        spelled = spelled + self._sizes[tokens].unsqueeze(1)
        counts = spelled.squeeze(1).tolist() if self._letters else []
        unfinished = any(count < len(self._letters) for count in counts)
        output = self._session.scorer.step(tokens, tuple(rest), sentences, parents, None if unfinished else best)
        log_probs = self._restrict(output.log_probs, counts) if unfinished else output.log_probs
        return StepOutput(log_probs, (spelled, *output.states), None, output.tokens)

    def _restrict(self, log_probs: Tensor, counts: Sequence[int], first: bool = False) -> Tensor:
        """Forbid what does not go on with the letters; of each row so many stand already."""
        for row, count in enumerate(counts):
            letters, begun = self._letters[count:], self._begun or not first
            if letters:
                allowed = self._spelling.continuing(letters, begun)
            elif first and not begun and self._spelling.style == "sentencepiece":
                allowed = [self._session.eos, *self._spelling.all_pieces(False)]
            else:
                continue
            places = torch.tensor(allowed, dtype=torch.long, device=log_probs.device)
            kept = log_probs[row, places]
            log_probs[row] = -math.inf
            log_probs[row, places] = kept
        return log_probs


def possible_words(
    session: Session,
    spelling: Spelling,
    prefix: Sequence[int],
    most: int,
    letters: str = "",
    head: str = "",
    whole: bool = False,
) -> tuple[list[Word], bool]:
    """The words that may come next, most probable first, and whether they are all there are.

    Best first over pieces; a word's probability is the sum over the spellings found.

    Args:
        session: the model and its input.
        spelling: of the model's tokens.
        prefix: tokens.
        most: words wanted.
        letters: with which the next word begins, beyond ``head``.
        head: letters of the word that are in the prefix already.
        whole: only the word that ``letters`` spell.
    """
    prefix = tuple(prefix)
    session.after(prefix)  # what this goes on from may have made room for others
    heap: list[tuple[float, int, tuple[int, ...], str]] = [(0.0, 0, (), "")]
    words: dict[str, Word] = {}
    all_of_them, pushed, expanded = True, 0, 0

    def bound() -> float:
        best = heapq.nlargest(most, [word.prob for word in words.values()])
        least = best[-1] if len(best) == most else 0.0
        return least if all_of_them or not best else max(least, SMALL * best[0])

    def add(text: str, log_prob: float, path: tuple[int, ...]) -> None:
        prob = math.exp(min(log_prob, 0.0))
        known = words.get(text)
        if known is None:
            words[text] = Word(text, prob, path, prob)
        else:
            best = path if prob > known.best else known.tokens
            words[text] = Word(text, known.prob + prob, best, max(prob, known.best))

    while heap and expanded < EXPANSIONS:
        taken: list[Any] = []
        least = bound()
        while heap and len(taken) < TOGETHER and math.exp(-heap[0][0]) > least:
            taken.append(heapq.heappop(heap))
        if not taken:
            break
        expanded += len(taken)
        for (cost, _, path, spelled), output in zip(taken, session.after_all([prefix + one[2] for one in taken])):
            log_probs, begun = output.log_probs[0].double().clamp(max=0.0), bool(head or path)
            rest = letters[len(spelled) :]
            if begun and not rest and (head or spelled) and spelling.open_ended and (not whole or spelled == letters):
                ending = float(log_probs[[session.eos, *spelling.ending]].exp().sum())
                if ending > 0:
                    add(head + spelled, -cost + math.log(ending), path)
            special = [token for token in spelling.special if token != session.eos]
            if special and not log_probs[special].isneginf().all():
                all_of_them = False  # `<unk>` is any word that the model does not know
            allowed = spelling.continuing(rest, begun) if rest else spelling.all_pieces(begun)
            tokens = torch.tensor(allowed, dtype=torch.long, device=log_probs.device)
            values, places = log_probs[tokens].topk(min(WIDTH, len(tokens)))
            if int(values.isneginf().logical_not().sum()) == WIDTH < len(tokens):
                all_of_them = False
            for value, token in zip(values.tolist(), tokens[places].tolist()):
                if value == -math.inf:
                    break
                text = spelled + spelling.letters[token]
                if whole and not letters.startswith(text):
                    continue
                if spelling.goes_on[token] or spelling.open_ended:
                    pushed += 1
                    heapq.heappush(heap, (cost - value, pushed, (*path, token), text))
                elif not whole or text == letters:
                    add(head + text, value - cost, (*path, token))
    found = sorted(words.values(), key=lambda word: (-word.prob, word.text))
    return found[:most], all_of_them and not heap and len(found) <= most


class Completer:
    """Completes typed texts of one input.

    Args:
        session: the model and its input.
        texts: how the model's text is written.
        ids: from tokens to indices.
        lookup: from an index to its token.
        source_length: tokens of the input.
    """

    def __init__(
        self,
        session: Session,
        texts: Tokens,
        ids: Callable[[Sequence[str]], list[int]],
        lookup: Callable[[int], str],
        source_length: int,
    ) -> None:
        self.session, self.texts, self.spelling = session, texts, texts.spelling
        self._ids, self._lookup = ids, lookup
        self._settings = SearchSettings(
            session.start,
            session.eos,
            beam_size=BEAM_SIZE,
            max_length=min(250, 2 * source_length + 20),
            certificates=True,
        )

    def best(self, prefix: Sequence[int], letters: str = "", begun: bool = False) -> SearchResult:
        """The most probable way to go on after a prefix; the hypothesis holds what follows alone."""
        (result,) = beam_search(Continuation(self.session, prefix, self.spelling, letters, begun), self._settings)
        return result

    def words(self, prefix: Sequence[int], most: int, letters: str = "", head: str = "") -> tuple[list[Word], bool]:
        """See :func:`possible_words`."""
        return possible_words(self.session, self.spelling, prefix, most, letters, head)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Texts of tokens."""
        return [self._lookup(token) for token in ids]

    def pieces_of(self, prefix: Sequence[int], word: str) -> tuple[int, ...]:
        """A word's tokens after a prefix: as they were trained, or where that is impossible the best that is not."""
        usual = tuple(self._ids(self.texts.pieces(word)))
        if self.session.impossible_at(prefix, usual) is None or self.spelling.style in ("words", "characters"):
            return usual
        found, _ = possible_words(self.session, self.spelling, prefix, 1, word, whole=True)
        return found[0].tokens if found else usual

    def complete(self, text: str, most: int) -> dict[str, Any]:
        """What ``/api/complete`` answers, but for the time.

        Args:
            text: what stands in the editor.
            most: words listed.
        """
        typed = self.texts.typed(text)
        prefix, tokens, wrong = self._settled(typed, text)
        words, all_of_them = self.words(prefix, most, typed.letters, typed.head)
        after, possible = prefix, True
        if typed.letters:
            spelled = self.pieces_of(prefix, typed.letters)
            after, possible = [*prefix, *spelled], self.session.impossible_at(prefix, spelled) is None
            if possible:
                probs = [self.session.probability(after[:at], after[at]) for at in range(len(prefix), len(after))]
                entry = {"token": typed.letters, "start": typed.start, "end": len(text), "prob": math.prod(probs)}
                tokens.append({**entry, "half_typed": True})
            if not words and wrong is None:
                place = (typed.start, len(text))
                wrong = self._impossible(prefix, text, place, place, "")
        result = self.best(prefix, typed.letters, bool(typed.head)) if words or not typed.letters else None
        found = result.hypotheses[0] if result is not None and result.hypotheses[0].finished else None
        following = [] if found is None else self.tokens(found.tokens)
        return {
            "word_start": typed.start,
            "tokens": tokens,
            "impossible": None if wrong is None else {**wrong, "instead": _listed(wrong["instead"])},
            "completion": "" if found is None else self.texts.following(typed, text, following),
            "certificate_class": "void" if wrong or result is None else certificate_class(vars(result.certificate)),
            "words": _listed(words),
            "words_complete": all_of_them,
            "can_end": self.session.probability(after, self.session.eos) if possible else 0.0,
        }

    def _settled(self, typed: Typed, text: str) -> tuple[list[int], list[dict[str, Any]], dict[str, Any] | None]:
        """The tokens of what is typed, with places and probabilities, and the first that is impossible."""
        prefix: list[int] = []
        tokens: list[dict[str, Any]] = []
        wrong = None
        by_letter = self.spelling.style == "characters"
        for number, (word, start, end) in enumerate([*typed.words, (typed.head, typed.start, len(text))]):
            own = [piece for piece in typed.pieces if piece.word == number]
            ids, before = self._ids([piece.token for piece in own]), list(prefix)
            if own and not by_letter:
                spelled = self.pieces_of(prefix, word)
                if list(spelled) != ids:  # as it was trained it is impossible, but otherwise it is not
                    ids = list(spelled)
                    own = self.texts.place(self.tokens(ids), start, end, number)
            for piece, token in zip(own, ids):
                prob = self.session.probability(prefix, token)
                if prob == 0 and wrong is None:
                    place = (piece.start, piece.end) if by_letter else (start, end)
                    head = text[start : piece.start] if by_letter else ""
                    wrong = self._impossible(prefix if by_letter else before, text, place, (start, end), head)
                tokens.append({"token": piece.token, "start": piece.start, "end": piece.end, "prob": prob})
                prefix.append(token)
        return prefix, tokens, wrong

    def _impossible(
        self, prefix: Sequence[int], text: str, place: tuple[int, int], word: tuple[int, int], head: str
    ) -> dict[str, Any]:
        """What stands at a place of the text cannot; what may, in the place of its word."""
        words, all_of_them = self.words(prefix, 10, "", head)
        return {
            "start": place[0],
            "end": place[1],
            "token": text[slice(*place)],
            "word_start": word[0],
            "word_end": word[1],
            "instead": words,
            "instead_complete": all_of_them,
        }


def certificate_class(certificate: Mapping[str, Any]) -> str:
    """The strongest thing that a certificate says, or ``void``."""
    return "void" if certificate["reason"] is not None else class_of(certificate)


def _listed(words: Sequence[Word]) -> list[dict[str, Any]]:
    return [{"word": word.text, "prob": word.prob} for word in words]
