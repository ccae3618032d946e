"""Builds models with our attention, writes on each output layer the alpha it was trained with, and loads for search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Callable

import torch
from tqdm import tqdm

from onmt_entmax.engines.cpu.products import products
from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.plugin.alphas import HEADS, alpha_of
from onmt_entmax.plugin.heads import alpha_of_modules, begin_queries, head_alphas, learned_alphas, map_heads
from onmt_entmax.unknown import UnknownTokens

if TYPE_CHECKING:
    from onmt_entmax.search.scorer import Scorer

FEATURE_MARK = "￨"  # U+FFE8, between a word and its features


@contextmanager
def float32_products(on_gpu: bool, wanted: str = "auto", log: Callable[[str], object] | None = None) -> Iterator[None]:
    """Multiply float32 matrices as option ``matmul_precision`` says, for translate and for our own commands alike.

    Args:
        on_gpu: whether the model runs there: older PyTorch has one setting for both, which would round there.
        wanted: the option.
        log: told where products are less exact than float32, or were to be.
    """
    with products("fp32" if on_gpu else wanted) as found:
        if log is not None and (wanted == "bf16" or found.precision != "fp32"):
            log(f"Matrix products: {found.library}, {found.precision} ({found.reason})")
        yield


def generator_alpha(model) -> float:
    """The alpha of a model's output layer.

    Raises:
        UserError: the model was built without the plugin, or its output layer was replaced.
    """
    try:
        return model.generator.alpha
    except AttributeError:
        raise UserError(
            f"The model's output layer ({type(model.generator).__name__}) does not say its alpha: build models with "
            "`onmt.model_builder` after `import onmt_entmax`, or set `model.generator.alpha`."
        ) from None


def attention_alpha(model) -> tuple[float | None, bool]:
    """Alpha of the decoder's attention to the source and whether it is learned; (None, False) for none of our kind.

    Of a Transformer's heads that learn theirs, the mean.
    """
    heads = head_alphas(model)
    if "context_attention" in heads:
        return heads["context_attention"]
    return alpha_of_modules([getattr(model.decoder, "attn", None)])


def attention_alpha_text(model) -> str:
    """The same for signatures: a learned one as its present value, ``none`` without any attention.

    Of a Transformer whose attentions differ each is named, as in ``enc1-dec1.5-ctx1.5``.
    """
    heads = head_alphas(model)
    if heads and all(learned for _, learned in heads.values()):
        return f"learned:{sum(alpha for alpha, _ in heads.values()) / len(heads):.3f}"
    if len(set(heads.values())) > 1:
        shown = {place: "learned" if learned else f"{alpha:g}" for place, (alpha, learned) in heads.items()}
        return "-".join(f"{place[:3].replace('con', 'ctx')}{alpha}" for place, alpha in shown.items())
    alpha, learned = attention_alpha(model)
    if alpha is None:
        return "1" if getattr(model.decoder, "attentional", False) else "none"
    return f"learned:{alpha:.3f}" if learned else f"{alpha:g}"


def check_vocabularies(expected: dict | None, found: dict, path: str) -> None:
    """Refuse a member of an ensemble whose source or target vocabulary is not the first member's."""
    if expected is None:
        return
    starts = [vocabs["decoder_start_token"] for vocabs in (expected, found)]
    if starts[0] != starts[1]:
        raise UserError(f"{path}: its outputs begin with {starts[1]}, those of the first model with {starts[0]}.")
    for side, name in (("src", "source"), ("tgt", "target"), ("src_feats", "feature")):
        # there is one vocabulary for each feature
        one, other = (
            [each.tokens_to_ids for each in (vocabs.get(side, []) if side == "src_feats" else [vocabs[side]])]
            for vocabs in (expected, found)
        )
        if one != other:
            raise UserError(
                f"{path}: its {name} vocabulary is not that of the first model; an ensemble needs one for all."
            )


class Models:
    """One model, or an ensemble, loaded for search; turns tokens into batches for it.

    Args:
        paths: checkpoints; their vocabularies must agree.
        gpu: index of the GPU, -1 for the CPU.

    Raises:
        UserError: a checkpoint cannot be loaded, is no sequence-to-sequence model, or vocabularies differ.
    """

    def __init__(self, paths: Sequence[str], gpu: int = -1) -> None:
        import onmt.opts
        from onmt.constants import DefaultTokens
        from onmt.model_builder import load_test_model
        from onmt.utils.parse import ArgumentParser

        parser = ArgumentParser()
        onmt.opts.translate_opts(parser)
        opt = parser.parse_args(["-model", *paths, "-src", "unused", "-gpu", str(gpu)])
        self.device = torch.device("cuda", gpu) if gpu >= 0 else torch.device("cpu")
        self.members, self.vocabs = [], None
        for path in paths:
            vocabs, model, model_opt = load_test_model(opt, gpu, model_path=path)
            if model_opt.model_task != "seq2seq":
                raise UserError(f"{path}: a language model; only sequence-to-sequence models can be searched here.")
            check_vocabularies(self.vocabs, vocabs, path)
            self.members.append(model)
            self.vocabs = self.vocabs or vocabs
        target, source = self.vocabs["tgt"], self.vocabs["src"]
        self.eos = target.lookup_token(DefaultTokens.EOS)
        self.unknown = target.lookup_token(DefaultTokens.UNK)
        self.unknown_source = source.lookup_token(DefaultTokens.UNK)
        self.start = target.lookup_token(self.vocabs["decoder_start_token"])
        self._features = self.vocabs.get("src_feats", [])
        self._padding = [side.lookup_token(DefaultTokens.PAD) for side in (source, *self._features)]
        self.average_probabilities = any(generator_alpha(model) != 1 for model in self.members)

    @property
    def alphas(self) -> str:
        """Alphas of output and attention for signatures, e.g. ``1.5/1.5``, members joined by ``+``."""
        return "+".join(f"{generator_alpha(model):g}/{attention_alpha_text(model)}" for model in self.members)

    def token(self, index: int) -> str:
        """Text of a target token."""
        return self.vocabs["tgt"].ids_to_tokens[index]

    def target_ids(self, tokens: Sequence[str]) -> list[int]:
        """Indices of target tokens; unknown ones become ``<unk>``."""
        return self.vocabs["tgt"](list(tokens)) if tokens else []

    def source_ids(self, tokens: Sequence[str], line: int) -> list[list[int]]:
        """Indices of source tokens, each of its word and its features (``word￨feature``).

        Args:
            tokens: of one line; at least one.
            line: its number, for messages.

        Raises:
            UserError: a token has another number of features than the model.
        """
        parts = [token.split(FEATURE_MARK) for token in tokens]
        for token, part in zip(tokens, parts):
            if len(part) != 1 + len(self._features):
                raise UserError(
                    f"source line {line}: `{token}` has {len(part) - 1} features (what follows {FEATURE_MARK}), but "
                    f"the model was trained with {len(self._features)}."
                )
        columns = zip((self.vocabs["src"], *self._features), zip(*parts))
        return [list(row) for row in zip(*(vocabulary(list(column)) for vocabulary, column in columns))]

    def encode(
        self, sources: Sequence[Sequence[Sequence[int]]], any_order: bool = False, most_bytes: int | None = None
    ) -> Scorer:
        """Bind the models to a batch.

        Args:
            sources: what :meth:`source_ids` made of each line.
            any_order, most_bytes: see :func:`~onmt_entmax.plugin.translate.scorers.build_scorer`.
        """
        from onmt_entmax.plugin.translate.scorers import build_scorer  # it needs the alphas above

        lengths = [len(source) for source in sources]
        rows = [[*source, *[self._padding] * (max(lengths) - len(source))] for source in sources]
        src = torch.tensor(rows, device=self.device)  # (B, S, 1 + features)
        with torch.no_grad():
            src_len = torch.tensor(lengths, device=self.device)
            return build_scorer(self.members, src, src_len, self.average_probabilities, any_order, most_bytes)


class Text:
    """The sources of one call, and its targets: tokens, indices, and what is unknown among them, line by line."""

    def __init__(self, models: Models, sources: list[list[str]]) -> None:
        self.models, self.sources = models, sources
        self.counts = UnknownTokens()
        self.unknown: list[list[str]] = []
        self.ids: list[list[list[int]]] = []
        self.targets: list[list[str]] = []
        self.target_ids: list[list[int]] = []
        for line, source in enumerate(self.sources, 1):
            ids = models.source_ids(source, line) if source else []
            self.ids.append(ids)
            self.unknown.append([token for token, row in zip(source, ids) if row[0] == models.unknown_source])
            self.counts.add("source", len(self.unknown[-1]), len(source), self.unknown[-1])

    def add_targets(self, targets: list[list[str]]) -> None:
        """Add targets, one for each source."""
        self.targets = targets
        if len(self.targets) != len(self.sources):
            raise UserError(f"There are {len(self.sources)} sources, but {len(self.targets)} targets.")
        for line, (target, unknown) in enumerate(zip(self.targets, self.unknown), 1):
            ids = self.models.target_ids(target)
            if self.models.eos in ids:
                raise UserError(f"target line {line}: it must not contain the end of the output, which is added.")
            self.target_ids.append(ids)
            own = [token for token, index in zip(target, ids) if index == self.models.unknown]
            unknown += own
            self.counts.add("target", len(own), len(target), own)

    def batches(self, batch_size: int, progress: bool, any_order: bool = False) -> Iterator[tuple[list[int], Scorer]]:
        """Lines that are not blank, of like length together: their places (from 0), and the model bound to them."""
        if batch_size < 1:
            raise invalid_setting("batch_size", batch_size, "It must be at least 1.")
        filled = sorted((place for place, ids in enumerate(self.ids) if ids), key=lambda place: len(self.ids[place]))
        bar = tqdm(total=len(filled), unit="line", disable=None if progress else True, leave=False)
        with bar, float32_products(self.models.device.type == "cuda"):  # for those who use the batches, too
            for start in range(0, len(filled), batch_size):
                places = filled[start : start + batch_size]
                yield places, self.models.encode([self.ids[place] for place in places], any_order)
                bar.update(len(places))

    def lengths(self, places: Sequence[int]) -> list[int]:
        """Numbers of source tokens."""
        return [len(self.sources[place]) for place in places]


def load_ensemble(stock):
    def load_test_model(opt, device_id=0):
        import onmt.model_builder
        from onmt.decoders.ensemble import EnsembleModel

        members, first = [], None
        for path in opt.models:
            loaded = onmt.model_builder.load_test_model(opt, device_id, model_path=path)
            first = first or loaded
            check_vocabularies(first[0], loaded[0], path)
            members.append(loaded[1])
        return first[0], EnsembleModel(members, opt.avg_raw_probs), first[2]

    return load_test_model


def build_base_model(stock):
    def build_base_model(model_opt, vocabs):
        try:
            model = stock(model_opt, vocabs)
        except ImportError as error:  # the packages of quantised layers
            if not getattr(model_opt, "quant_type", ""):
                raise
            raise invalid_setting("quant_type", model_opt.quant_type, f"{error}.") from error
        model.generator.alpha = alpha_of(model_opt, "generator")
        map_heads(model, {place: alpha_of(model_opt, place) for place in HEADS})
        start = getattr(model_opt, "learned_alpha_start", None)
        for module in learned_alphas(model):
            module.begin_at(1.5 if start is None else start)
        for side in (getattr(model, "encoder", None), model.decoder):
            if hasattr(side, "embeddings"):
                side.embeddings.std = getattr(model_opt, "embedding_init", 0.0)
        return model

    return build_base_model


def build_model(stock):
    def build_model(model_opt, opt, vocabs, checkpoint, device_id):
        from onmt.utils.logging import logger

        model = stock(model_opt, opt, vocabs, checkpoint, device_id)
        if checkpoint is None:  # `param_init` has drawn a random start for every parameter
            for module in learned_alphas(model):
                module.begin_again()
            factor = getattr(model_opt, "query_init", None)
            begin_queries(model, factor)
            if factor is None and head_alphas(model):
                logger.info("Sparse heads begin with equal scores: their query weights are zero (`query_init`: 0).")
        return model

    return build_model


def load_pretrained_vectors(stock):
    def load_pretrained_vectors(self, emb_file):  # called right after `param_init`, with or without a file
        from onmt.utils.logging import logger

        std = getattr(self, "std", 0.0)
        if std and emb_file:
            logger.info(f"`embedding_init: {std:g}` is not used for the vectors read from {emb_file}.")
        elif std:
            for table in self.emb_luts:
                drawn = torch.empty(table.weight.shape).normal_(0, std)  # on the CPU: the same on every device
                with torch.no_grad():
                    table.weight.copy_(drawn)
                    if table.padding_idx is not None:
                        table.weight[table.padding_idx] = 0
        return stock(self, emb_file)

    return load_pretrained_vectors


def load_state_dict(stock):
    def load_state_dict(self, checkpoint, *args, **kwargs):
        # a parameter that a module holds under two names (weight-normed convolutions) is saved under both, but stock
        # reads the first only and then refuses the second
        for prefix, module in self.named_modules():
            seen = {}
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                if seen.setdefault(id(parameter), name) != name:
                    checkpoint["model"].pop(f"{prefix}.{name}", None)
        return stock(self, checkpoint, *args, **kwargs)

    return load_state_dict


def get_var_maybe_avg(stock):
    def get_var_maybe_avg(namespace, var_name, training, polyak_decay):
        # stock moves a weight-normed convolution's averages in evaluation too: no two decodings would be alike
        if not training:
            return getattr(namespace, f"{var_name}_avg")
        return stock(namespace, var_name, training, polyak_decay)

    return get_var_maybe_avg
