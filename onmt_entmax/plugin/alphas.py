"""From the options a user writes to one alpha per place, with contradictions refused."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Collection

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.plugin.parsing import is_unset

NAMED = {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0}
FUNCTIONS = ("softmax", "sparsemax", "entmax15", "entmax")  # the choices of `*_function`
HEADS = ("encoder_self_attention", "decoder_self_attention", "context_attention")  # of Transformers
PLACES = ("global_attention", "generator", *HEADS)
BOTH_SIDES = "self_attention"  # short for the first two of HEADS
LEARNED = "learned"


def resolve_alpha(function: str | None, alpha: object, place: str) -> float | str:
    """Combine ``{place}_function`` and ``{place}_alpha`` into one alpha.

    Args:
        function: one of :data:`FUNCTIONS`; None where unset: softmax, or entmax with an alpha given.
        alpha: None where unset, a number, a string that reads as one, or ``"learned"`` (attention only).
        place: one of :data:`PLACES`, or :data:`BOTH_SIDES`.

    Returns:
        alpha as a float, at least 1, or ``"learned"``.

    Raises:
        UserError: an unknown function, alpha below 1 or no number, or a name and a different alpha together.
    """
    if function is None:
        function = "softmax" if alpha is None or alpha == "" else "entmax"
    if function not in FUNCTIONS:
        raise invalid_setting(f"{place}_function", function, choices(FUNCTIONS))
    if alpha is None or alpha == "":
        if function == "entmax":
            raise invalid_setting(
                f"{place}_alpha", "unset", f"`{place}_function: entmax` needs an alpha of at least 1."
            )
        return NAMED[function]
    if alpha == LEARNED:
        if place == "generator":
            raise invalid_setting(f"{place}_alpha", alpha, "Only an attention's alpha can be learned; give a number.")
        if function != "entmax":
            raise invalid_setting(
                f"{place}_alpha", alpha, f"`{place}_function` is {function}; a learned alpha needs `entmax`."
            )
        return LEARNED
    rule = "It must be a number of at least 1; 1 is softmax, 1.5 is entmax15, 2 is sparsemax."
    try:
        value = float(alpha)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise invalid_setting(f"{place}_alpha", alpha, rule) from None
    if not math.isfinite(value) or value < 1:
        raise invalid_setting(f"{place}_alpha", alpha, rule)
    if function != "entmax" and value != NAMED[function]:
        raise invalid_setting(
            f"{place}_alpha",
            alpha,
            f"`{place}_function` is {function}, whose alpha is {NAMED[function]:g}; set `{place}_function: entmax`, "
            "or leave one of the two out.",
        )
    return value


def alpha_of(opt: Namespace, place: str) -> float | str:
    """The alpha of ``place`` in (model) options, which may come from a checkpoint without our options."""
    function = getattr(opt, f"{place}_function", None) or None
    return resolve_alpha(None if is_unset(function) else function, getattr(opt, f"{place}_alpha", None), place)


def spread_self_attention(opt: Namespace) -> None:
    """Replace ``self_attention_*`` by the options of the sides that are Transformers and have none of their own.

    Raises:
        UserError: neither side is, or the options contradict each other.
    """
    names = [f"{BOTH_SIDES}_function", f"{BOTH_SIDES}_alpha"]
    function, alpha = (getattr(opt, name, None) or None for name in names)
    if function is None and alpha is None:
        return
    resolved = resolve_alpha(function, alpha, BOTH_SIDES)
    sides = [side for side in ("encoder", "decoder") if getattr(opt, f"{side}_type", "rnn") == "transformer"]
    if not sides:
        raise invalid_setting(
            names[0] if alpha is None else names[1],
            function if alpha is None else alpha,
            "Neither `encoder_type` nor `decoder_type` is transformer; recurrent decoders have "
            "`global_attention_alpha`.",
        )
    for side in sides:
        own = [getattr(opt, f"{side}_{name}", None) or None for name in names]
        if own == [None, None]:
            store_alpha(opt, f"{side}_{BOTH_SIDES}", resolved)
    for name in names:
        setattr(opt, name, None)


def store_alpha(opt: Namespace, place: str, alpha: float | str) -> None:
    """Write ``alpha`` into ``opt`` so that :func:`alpha_of` gives it back and stock code sees a name it knows of."""
    names = {value: name for name, value in NAMED.items()}
    setattr(opt, f"{place}_function", names.get(alpha, "entmax"))  # type: ignore[call-overload]
    setattr(opt, f"{place}_alpha", alpha)


def keep_checkpoint_alphas(opt: Namespace, checkpoint_opt: Namespace, given: Collection[str] = ()) -> list[str]:
    """Give ``opt`` (from the command line) the checkpoint's alphas; refuse another one that was asked for.

    Resuming without our options keeps what the checkpoint was trained with; a softmax that was asked for is no default.

    Args:
        opt: the options of the run; changed.
        checkpoint_opt: those in the checkpoint.
        given: names of the options that the user gave.
    """
    notes = []
    for place in PLACES:
        wanted, trained = alpha_of(opt, place), alpha_of(checkpoint_opt, place)
        names = {f"{name}_{part}" for name in _spellings(place) for part in ("function", "alpha")}
        asked = wanted != 1 or not names.isdisjoint(given)
        if wanted != trained and asked:
            raise UserError(
                f"Invalid setting for `{place}_alpha`: {wanted}. The checkpoint in `train_from` was trained with "
                f"{trained}; leave `{place}_function` and `{place}_alpha` out to keep it."
            )
        if wanted != trained:
            notes.append(f"{place}_alpha {trained} comes from the checkpoint")
        store_alpha(opt, place, trained)
    return notes


def _spellings(place: str) -> tuple[str, ...]:
    """What options of this place begin with."""
    return (place, BOTH_SIDES) if place.endswith(BOTH_SIDES) else (place,)
