"""Stand-ins for packages that OpenNMT-py imports at its start and that few of its users need.

``import onmt`` imports every transform, and so spaCy, fastText and others; of ``pyonmttok`` it needs the vocabulary.
Some of them have no wheels for Python 3.13 and newer. Where one is missing, the modules of OpenNMT-py that import it
get a stand-in, and no other importer does (``sys.modules`` is as before afterwards): for ``pyonmttok`` a vocabulary in
Python, for the others something that may be imported but not used. What needs a missing package is refused by name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from onmt_entmax import autoload
from onmt_entmax.errors import UserError

UNK = "<unk>"  # the token whose index unknown tokens get, as long as nobody sets another
UNCOUNTED = 2**64 - 1  # what pyonmttok says is the count of a special token

# package as imported: name for pip
PACKAGES = {
    "pyonmttok": "pyonmttok",
    "fasttext": "fasttext-numpy2-wheel",
    "spacy": "spacy",
    "ahocorasick": "pyahocorasick",
    "rapidfuzz": "rapidfuzz",
}
NOT_FOR_NEW_PYTHON = frozenset({"pyonmttok", "fasttext"})  # no wheels for 3.13 and newer
# module of OpenNMT-py: what it imports at its top
IMPORTERS = {
    "onmt.inputters.inputter": ("pyonmttok",),
    "onmt.inputters.text_utils": ("pyonmttok",),
    "onmt.bin.build_vocab": ("pyonmttok",),
    "onmt.transforms.clean": ("fasttext",),
    "onmt.transforms.terminology": ("spacy", "ahocorasick"),
    "onmt.transforms.inlinetags": ("ahocorasick",),
    "onmt.transforms.fuzzymatch": ("rapidfuzz",),
}
TRANSFORMS = {
    "clean": IMPORTERS["onmt.transforms.clean"],
    "terminology": IMPORTERS["onmt.transforms.terminology"],
    "inlinetags": IMPORTERS["onmt.transforms.inlinetags"],
    "fuzzymatch": IMPORTERS["onmt.transforms.fuzzymatch"],
    "onmt_tokenize": ("pyonmttok",),
}


class Vocab:
    """A vocabulary that answers as ``pyonmttok.Vocab`` does: tokens with counts, in the order of their indices.

    Args:
        special_tokens: tokens that :meth:`resize` keeps, at the front.
    """

    __slots__ = ("_counts", "_default", "_ids", "_tokens")

    def __init__(self, special_tokens: Iterable[str] | None = None) -> None:
        self._tokens: list[str] = []
        self._counts: list[int] = []
        self._ids: dict[str, int] = {}
        self._default: int | None = None
        for token in special_tokens or ():
            self.add_token(token, UNCOUNTED)

    def add_token(self, token: str, count: int = 1) -> None:
        """Append a token, or count one that is there ``count`` times more."""
        index = self._ids.setdefault(token, len(self._tokens))
        if index == len(self._tokens):
            self._tokens.append(token)
            self._counts.append(count)
        else:
            self._counts[index] = min(self._counts[index] + count, UNCOUNTED)

    def resize(self, maximum_size: int = 0, minimum_frequency: int = 1) -> None:
        """Sort by falling count and keep what is frequent enough, at most ``maximum_size`` tokens (0: all)."""
        if maximum_size == 0 and minimum_frequency == 1:
            return
        order = sorted(range(len(self)), key=lambda index: -self._counts[index])
        order = [index for index in order if self._counts[index] >= minimum_frequency]
        if maximum_size > 0:
            order = order[: max(maximum_size, self._counts.count(UNCOUNTED))]
        kept = [self._tokens[index] for index in order], [self._counts[index] for index in order], self._default
        self.__setstate__(kept)

    @property
    def default_id(self) -> int:
        """Index of tokens that are not in the vocabulary; unless set, that of ``<unk>``, or else the size."""
        return self._ids.get(UNK, len(self._tokens)) if self._default is None else self._default

    @default_id.setter
    def default_id(self, index: int) -> None:
        self._default = index

    @property
    def ids_to_tokens(self) -> list[str]:
        """A copy of the list of tokens."""
        return self._tokens.copy()

    @property
    def tokens_to_ids(self) -> dict[str, int]:
        """A copy of the index of every token."""
        return self._ids.copy()

    @property
    def counters(self) -> list[int]:
        """A copy of the list of counts."""
        return self._counts.copy()

    def lookup_token(self, token: str) -> int:
        """Index of a token, :attr:`default_id` if it is not in the vocabulary."""
        if not isinstance(token, str):
            raise TypeError(f"a token is a string, not {token!r}")
        index = self._ids.get(token)
        return self.default_id if index is None else index

    __getitem__ = lookup_token

    def lookup_index(self, index: int) -> str:
        """The token with an index, ``<unk>`` beyond the end."""
        if index < 0:
            raise TypeError(f"an index is not negative, as {index} is")
        return self._tokens[index] if index < len(self._tokens) else UNK

    def __call__(self, tokens: Iterable[str]) -> list[int]:
        """Indices of tokens, unknown ones as :attr:`default_id`."""
        if isinstance(tokens, str):
            raise TypeError(f"a list of tokens is needed, not the string {tokens!r}")
        default = self.default_id
        return [self._ids.get(token, default) for token in tokens]

    def __contains__(self, token: str) -> bool:
        return token in self._ids

    def __len__(self) -> int:
        return len(self._tokens)

    def __getstate__(self) -> tuple[list[str], list[int], int | None]:
        return self.ids_to_tokens, self.counters, self._default

    def __setstate__(self, state: tuple[list[str], list[int], int | None]) -> None:
        self._tokens, self._counts, self._default = state
        self._ids = {token: index for index, token in enumerate(self._tokens)}


def build_vocab_from_tokens(
    tokens: Iterable[str],
    maximum_size: int = 0,
    minimum_frequency: int = 1,
    special_tokens: Iterable[str] | None = None,
) -> Vocab:
    """Count tokens into a vocabulary, special ones first, and :meth:`Vocab.resize` it."""
    vocab = Vocab(special_tokens)
    for token in tokens:
        vocab.add_token(token)
    vocab.resize(maximum_size, minimum_frequency)
    return vocab


class _Missing(types.ModuleType):
    """Something of a package that is missing: it may be imported and named; calling it raises :class:`UserError`."""

    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(self.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise UserError(f"This needs what is not installed: {_remedy([self.__name__])}.")


def _remedy(packages: list[str]) -> str:
    names = " ".join(PACKAGES[package] for package in packages)
    new = sys.version_info >= (3, 13) and not NOT_FOR_NEW_PYTHON.isdisjoint(packages)
    return f"pip install {names}" + (" (under Python 3.12 or older: there is no wheel for newer ones)" if new else "")


def is_missing(package: str) -> bool:
    """Whether Python itself finds no such package."""
    return isinstance(sys.modules.get(package), _Missing) or importlib.util.find_spec(package) is None


def _stand_in(package: str) -> types.ModuleType:
    module = _Missing(package)
    if package == "pyonmttok":
        module.__dict__.update(Vocab=Vocab, build_vocab_from_tokens=build_vocab_from_tokens)
    return module


@contextlib.contextmanager
def imported(packages: Iterable[str]) -> Iterator[None]:
    """Have stand-ins for the missing ones among ``packages`` in ``sys.modules``; leave that as it was."""
    before = {package: sys.modules.get(package, _Missing) for package in packages if is_missing(package)}
    sys.modules.update({package: _stand_in(package) for package in before})
    try:
        yield
    finally:
        for package, module in before.items():
            del sys.modules[package]
            if module is not _Missing:  # None forbids an import
                sys.modules[package] = module


def execute(name: str, namespace: dict[str, Any]) -> None:
    """Execute the code of one of :data:`IMPORTERS`, with stand-ins for what is missing."""
    with imported(IMPORTERS[name]):
        exec(_code_of[name](name), namespace)


_code_of: dict[str, Any] = {}  # the loaders' own ``get_code``


class StandInFinder:
    """Finds the modules in :data:`IMPORTERS` as usual, and has them executed with stand-ins for what is missing."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return the ordinary spec with code that calls :func:`execute`; None for other modules."""
        if name not in IMPORTERS:
            return None
        spec = autoload.ordinary_spec(StandInFinder, name, path, target)
        if spec is not None and hasattr(spec.loader, "get_code"):
            # what both ``import`` and ``python -m`` execute
            _code_of[name] = spec.loader.get_code
            line = f"__import__({__name__!r}, fromlist=['execute']).execute({name!r}, globals())"
            spec.loader.get_code = lambda fullname: compile(line, spec.origin, "exec")
        return spec


def prepare() -> None:
    """Let OpenNMT-py be imported without the packages in :data:`PACKAGES`; to be called before it is."""
    if StandInFinder not in sys.meta_path and any(is_missing(package) for package in PACKAGES):
        sys.meta_path.insert(0, StandInFinder)


def _refuse(what: str, packages: Iterable[str]) -> None:
    missing = [package for package in packages if is_missing(package)]
    if missing:
        raise UserError(f"{what} needs what is not installed: {_remedy(missing)}.")


def transform_init(stock):
    """Refuse a transform that needs a missing package when it is made."""
    from onmt.transforms import AVAILABLE_TRANSFORMS  # this module is imported before OpenNMT-py is

    def init(self, opts):
        for name, kind in AVAILABLE_TRANSFORMS.items():
            if kind is type(self) and name in TRANSFORMS:
                _refuse(f"The transform `{name}`", TRANSFORMS[name])
        stock(self, opts)

    return init


def validate_transforms(stock):
    """Refuse transforms and subword learners that need a missing package before any data are read."""

    def validate(cls, opt):
        for name in sorted(set(opt._all_transform) & set(TRANSFORMS)):
            _refuse(f"The transform `{name}`", TRANSFORMS[name])
        if getattr(opt, "learn_subwords", False):
            _refuse("`learn_subwords`", ["pyonmttok"])
        from onmt_entmax.plugin.corpora import check_transforms  # this module is imported before OpenNMT-py is

        check_transforms(opt, opt._all_transform)
        stock.__func__(cls, opt)

    return classmethod(validate)


def build_tokenizer(stock):
    """Refuse the server's tokenizer of pyonmttok where that is missing."""

    def build(self, tokenizer_opt):
        if tokenizer_opt.get("type") == "pyonmttok":
            _refuse("The tokenizer `pyonmttok`", ["pyonmttok"])
        return stock(self, tokenizer_opt)

    return build


def with_vocabulary(stock):
    """Let a function that imports pyonmttok for its vocabulary have the stand-in."""

    def function(*args, **kwargs):
        with imported(["pyonmttok"]):
            return stock(*args, **kwargs)

    return function
