"""The paragraph on sparsity that goes with Table 1: how often the beam holds everything, from the development set."""

from __future__ import annotations

from pathlib import Path

from onmt_entmax.files import read_json

# the paper's best model of each setting: alphas, all mass on one hypothesis, beam holds all the mass (%)
PAPER = {"high": ("2/1", 81, 87), "medium": ("2/1.5", 66, 79)}


def sparsity_paragraph(grid: dict) -> str:
    """Certificate rates on the development set for each pair, averaged over languages, then over seeds; Markdown."""
    heads = ("single", "complete", "optimal", "mass_is_one")
    lines = [
        "Certificate rates on the development set (%), averaged over languages and seeds: the model's whole "
        "distribution is one hypothesis (`single`); the beam holds the whole distribution (`complete`); its best "
        "hypothesis is certainly a most probable one (`optimal`); its probabilities add up to 1 in floating point "
        "(`mass_is_one`, the paper's own count).",
        "",
        "| output/attention | " + " | ".join(heads) + " |",
        "|---" * (len(heads) + 1) + "|",
    ]
    signatures = []
    for pair in grid["pairs"]:
        results = [read_json(Path("runs", pair, f"seed{seed}", "dev.json")) for seed in grid["seeds"]]
        rates = [sum(result["macro"][head] for result in results) / len(results) for head in heads]
        lines.append(f"| {pair.replace('_', '/')} | " + " | ".join(f"{rate:.1f}" for rate in rates) + " |")
        signatures += [result["signatures"]["complete"] for result in results]
    if grid["name"] in PAPER:
        alphas, single, whole = PAPER[grid["name"]]
        lines += ["", f"The paper, {grid['name']}, {alphas}: all mass on one hypothesis {single}%, `mass_is_one` "
                      f"{whole}%, on the validation set."]  # fmt: skip
    return "\n".join([*lines, "", *(f"    {signature}" for signature in signatures), ""])
