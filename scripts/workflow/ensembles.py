"""``--ensembles``: which models they have, and the paragraph that says which one was chosen."""

from __future__ import annotations

from pathlib import Path

from onmt_entmax.errors import choices, invalid_setting
from onmt_entmax.files import read_json
from onmt_entmax.report.tables import members as in_words
from onmt_entmax.signatures import parse_signature
from onmt_entmax.tasks.results import comparison_line


def members(texts: list[str], known: list[str], seeds: list[int]) -> dict[str, list[tuple[str, int]]]:
    """Read ``--ensembles``.

    Args:
        texts: such as ``2/1.5:1+2,1.5/1.5``; without seeds all of the grid.
        known, seeds: the pairs of the grid, as ``OUTPUT_ATTENTION``, and its seeds.

    Returns:
        Name of a folder, ``1.5_1.5-1+2+3,2_1.5-1+2``, -> (pair, seed) of each member, in order.

    Raises:
        UserError: unknown pairs or seeds, a member twice, fewer than two.
    """
    found: dict[str, list[tuple[str, int]]] = {}
    for text in texts:
        chosen = set()
        for part in text.split(","):
            pair, colon, own = part.partition(":")
            name = pair.replace("/", "_")
            if name not in known:
                shown = choices(one.replace("_", "/") for one in known)
                raise invalid_setting("ensembles", text, f"{pair or 'An empty text'} is no pair of this grid. {shown}")
            for seed in own.split("+") if colon else map(str, seeds):
                if seed not in map(str, seeds):
                    raise invalid_setting("ensembles", text, f"{seed!r} is no seed of this grid. {choices(seeds)}")
                if (name, int(seed)) in chosen:
                    raise invalid_setting("ensembles", text, f"{pair} with seed {seed} is in it twice.")
                chosen.add((name, int(seed)))
        if len(chosen) < 2:
            raise invalid_setting("ensembles", text, "It has one member.")
        by_pair = {name: [str(seed) for one, seed in sorted(chosen) if one == name] for name, _ in sorted(chosen)}
        found[",".join(f"{name}-{'+'.join(own)}" for name, own in by_pair.items())] = sorted(chosen)
    return found


def paragraph(grid: dict, folder: Path) -> str:
    """Accuracy of the candidates on the development set, and of the chosen one on test; Markdown."""
    choice = read_json(folder / "chosen.json")
    lines = [
        "Ensembles by averaged probabilities (output/attention:seeds). The one with the best word accuracy on the "
        "development set was chosen, and decoded on test (as all seeds of one pair are in any case, for Table 1).",
        "",
        "| ensemble | dev % | test % |",
        "|---|---:|---:|",
    ]
    signatures = []
    test = read_json(folder / choice["name"] / "test.json")
    for name in sorted(grid["ensembles"], key=choice["dev"].__getitem__, reverse=True):
        result = read_json(folder / name / "dev.json")
        about = parse_signature(result["signatures"]["acc"])
        shown = f"{test['macro']['acc']:.2f}" if name == choice["name"] else ""
        lines.append(f"| {in_words(about['alpha'], about['seed'])} | {choice['dev'][name]:.2f} | {shown} |")
        signatures.append(result["signatures"]["acc"])
    single = "{single}, {single_dev:.2f}% on dev".format_map(choice)
    lines += ["", comparison_line(f"On test, above the best single model ({single})", test["comparison"])]
    signatures += [test["signatures"][name] for name in ("acc", "acc_difference")]
    return "\n".join([*lines, "", *(f"    {signature}" for signature in signatures), ""])
