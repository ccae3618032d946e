"""Small hand-made inputs. Invented to exercise the drawing; no number here is a result."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from onmt_entmax.search.result import void_record
from onmt_entmax.tasks.trust import trust


def certificate(hypotheses: list[tuple[str, float]], **changes: Any) -> dict[str, Any]:
    """A complete certificate of strings of characters with these probabilities."""
    found = sum(prob for _, prob in hypotheses)
    record = {
        "line": 1,
        "hypotheses": [
            {"tokens": list(form), "log_prob": math.log(prob), "prob": prob, "finished": True}
            for form, prob in hypotheses
        ],
        "complete": True,
        "optimal": True,
        "certified_n": len(hypotheses),
        "margin": None,
        "mass_found": found,
        "mass_dropped": 0.0,
        "best_dropped_log_prob": None,
        "mass_is_one": True,
        "found": len(hypotheses),
        "expansions": 12,
        "dtype": "float32",
        "reason": None,
    }
    return {**record, **changes}


def draw() -> dict[str, Any]:
    """The paper's Fig. 1 as a certificate: 66.4% drawed, 32.2% drawn, 1.4% draw."""
    return certificate([("drawed", 0.664), ("drawn", 0.322), ("draw", 0.014)])


def tree(paths: list[tuple[list[str], list[float], str]]) -> list[dict[str, Any]]:
    """Nodes of a search tree from paths: tokens, a probability for each token, and the status of the last."""
    nodes = [{"parent": None, "token": "<s>", "log_prob": 0.0, "status": "live"}]
    index: dict[tuple[str, ...], int] = {(): 0}
    for tokens, probs, status in paths:
        for depth, (token, prob) in enumerate(zip(tokens, probs), 1):
            key = tuple(tokens[:depth])
            if key not in index:
                parent = index[key[:-1]]
                index[key] = len(nodes)
                log_prob = nodes[parent]["log_prob"] + math.log(prob)
                nodes.append({"parent": parent, "token": token, "log_prob": log_prob, "status": "live"})
        nodes[index[tuple(tokens)]]["status"] = status
    return nodes


PLACES = ("encoder_self_attention", "decoder_self_attention", "context_attention")
WORDS = [
    "this",
    "is",
    "another",
    "look",
    "at",
    "the",
    "tree",
    "of",
    "life",
    "and",
    "a",
    "view",
    "from",
    "our",
    "small",
    "planet",
    "to",
    "old",
    "stars",
]


def long_tree(length: int, seed: int = 0, branches: int = 12) -> list[dict[str, Any]]:
    """A tree of words: one main path with side paths of all kinds."""
    rng = random.Random(seed)
    main = [rng.choice(WORDS) for _ in range(length)]
    cuts = sorted(rng.sample(range(1, length), branches))
    probs = [0.8 if step in cuts else 1.0 for step in range(length)]
    paths = [([*main, "</s>"], [*probs, 1.0], "finished")]
    for number, cut in enumerate(cuts):
        other = [rng.choice(["glimpse", "sight", "vision"]), *(rng.choice(WORDS) for _ in range(length - cut - 1))]
        status = ["finished", "dropped", "stopped", "cut"][number % 4]
        end = ["</s>"] if status == "finished" else []
        rest = other[:1] if status == "dropped" else other
        paths.append(
            ([*main[:cut], *rest, *end], [*probs[:cut], 0.2, *[1.0] * (len(rest) - 1), *[1.0] * len(end)], status)
        )
    return tree(paths)


def forced(tokens: list[str], supports: list[dict[str, float]], source: list[str] | None = None) -> dict[str, Any]:
    """An example of forced decoding; an empty support means that the token is the only choice."""
    steps = []
    log_prob: float | None = 0.0
    for position, (token, support) in enumerate(zip(tokens, supports)):
        support = support or {token: 1.0}
        prob = support.get(token, 0.0)
        log_prob = None if log_prob is None or prob == 0 else log_prob + math.log(prob)
        attended = [position % len(source), (position + 1) % len(source)] if source else []
        steps.append(
            {
                "token": token,
                "log_prob": math.log(prob) if prob else None,
                "prob": prob,
                "support": [{"token": other, "prob": p} for other, p in support.items()],
                "support_size": len(support),
                "attention": [{"position": p, "token": source[p], "weight": w} for p, w in zip(attended, (0.75, 0.25))]
                if source
                else None,
            }
        )
    record = {"line": 1, "log_prob": log_prob, "impossible_at": None, "steps": steps}
    return {**record, "source": source} if source else record


TREE_OF_LIFE = forced(
    [*["This", "is", "another", "view", "of", "the", "tree", "of", "life", "."], "</s>"],
    [
        {"This": 0.92, "So": 0.05, "And": 0.03},
        {"is": 0.81, "'s": 0.19},
        {"another": 0.97, "a": 0.02, "one": 0.01},
        {
            "look": 0.42,
            "view": 0.22,
            "glimpse": 0.15,
            "kind": 0.08,
            "looking": 0.06,
            "way": 0.04,
            "gaze": 0.02,
            "sight": 0.01,
        },
        {"at": 0.55, "of": 0.42, "on": 0.03},
        {},
        {"tree": 0.93, "trees": 0.07},
        {},
        {},
        {},
        {},
    ],
    ["Dies", "ist", "ein", "weiterer", "Blick", "auf", "den", "Baum", "des", "Lebens", "."],
)


def metrics_rows(
    output: float, attention: float, top: float, steps: int = 8, seed: int = 1, speed: float = 1000.0
) -> list[dict[str, Any]]:
    """A made-up run: accuracy rises towards ``top``."""
    rows = []
    for number in range(1, steps + 1):
        rise = 1 - math.exp(-number / 2)
        rows.append(
            {
                "step": 100 * number,
                "kind": "valid",
                "loss": 4 - 3 * rise,
                "alpha_output": output,
                "alpha_attention": attention,
                "accuracy": top * rise - (1.5 if number == steps else 0),
                "perplexity": math.exp(4 - 3 * rise) if output == 1 else None,
                "support_output": 18000 if output == 1 else 900 * math.exp(-number) + 20 / output,
                "support_attention": 24.0 if attention == 1 else 10 / attention,
                "gold_zero": 0.0 if output == 1 else 2.5,
                "epsilon_perplexity": 12.0,
                "epsilon": 0.01,
                "sparsemax_score": 80.0 * rise,
                "jensen_shannon": 0.2,
                "learning_rate": 0.001,
                "words_per_second": speed,
                "elapsed": 3600 * number * 1000 / speed,
                "epoch": number,
                "steps_per_epoch": 100,
                "n_words": 5000,
                "signature": f"valid|task:toy|alpha:{output:g}/{attention:g}|seed:{seed}|version:0.1.0",
            }
        )
    return rows


def write_lines(path: Path, objects: list[dict[str, Any]]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in objects), encoding="utf-8")
    return path


def write_heads(path: Path, alphas: list[float], accuracy: list[float], heads: bool = True) -> Path:
    """A metrics file with a validation for each alpha, that of the second head of the only layer of each attention."""
    rows = []
    for step, (alpha, right) in enumerate(zip(alphas, accuracy), 1):
        row = {"kind": "valid", "step": step, "accuracy": right, "elapsed": step, "loss": 1.0, "alpha_output": 1.5}
        row |= {"alpha_attention": alpha, "alpha_learned": alpha != 1.5, "signature": f"valid|seed:{path.stem}"}
        own = {"alpha": [[1.5, alpha]], "density": [[alpha - 1, 0.25]], "jensen_shannon": [alpha / 4]}
        rows.append({**row, **({"heads": dict.fromkeys(PLACES, own)} if heads else {})})
    return write_lines(path, rows)


def trace(
    line: int, paths: list[tuple[list[str], list[float], str]], source: list[str], **changes: Any
) -> dict[str, Any]:
    """An object as ``onmt_entmax trace`` writes it; the best hypothesis has attention on two source tokens per step."""
    hypotheses = []
    for tokens, probs, status in paths:
        if status == "finished":
            log_prob = sum(map(math.log, probs))
            hypotheses.append(
                {"tokens": tokens[:-1], "log_prob": log_prob, "prob": math.exp(log_prob), "finished": True}
            )
    hypotheses.sort(key=lambda hypothesis: -hypothesis["log_prob"])
    attention = []
    for step in range(len(hypotheses[0]["tokens"]) + 1):
        row = [0.0] * len(source)
        row[step % len(source)] += 0.75
        row[(step + 1) % len(source)] += 0.25
        attention.append(row)
    hypotheses[0]["attention"] = attention
    record = certificate([("x", 1.0)], line=line, found=len(hypotheses), **changes)
    return {**record, "hypotheses": hypotheses, "source": source, "tree": tree(paths)}


def inflection_result(
    accuracy: float, alpha: str, seed: str, setting: str = "medium", task: str = "conll2018.1", languages: int = 102
) -> dict[str, Any]:
    """What ``onmt_entmax evaluate inflection --json`` writes, as far as tables read it."""
    about = f"task:{task}|set:{setting}|split:test|langs:{languages}|avg:macro|alpha:{alpha}|seed:{seed}|version:0.1.0"
    return {
        "macro": {"acc": accuracy, "lev": 0.25},
        "languages": {"english": {"acc": accuracy, "lev": 0.25}, "spanish": {"acc": accuracy, "lev": 0.25}},
        "signatures": {"acc": f"acc|{about}", "lev": f"lev|{about}"},
    }


def translation_result(
    scores: list[float], alpha: str, direction: str = "de-en", train: int = 206112
) -> dict[str, Any]:
    """What ``onmt_entmax evaluate translation --json`` writes, as far as tables read it."""
    about = f"task:iwslt17|dir:{direction}|split:test|lines:10|train:{train}|alpha:{alpha}|seed:1,2|version:0.1.0"
    runs = [{"predictions": f"{s}.pred", "sha256": f"{alpha}{direction}{s}", "bleu_tok": s} for s in scores]
    mean = {"bleu_tok": sum(scores) / len(scores)}
    return {"runs": runs, "mean": mean, "sd": {"bleu_tok": None}, "signatures": {"bleu_tok": f"bleu_tok|{about}"}}


def trust_result(probs: list[float], quality: list[float], measure: str = "acc") -> dict[str, Any]:
    """What ``evaluate --certificates --json`` writes of such outputs; those of probability 1 are single strings."""
    certificates = [certificate([("a", prob)], complete=prob == 1) for prob in probs]
    own = trust(certificates, quality, measure, samples=5)
    about = {"signatures": {"trust": "trust|task:toy|bins:10|version:0.1.0"}}
    if measure == "acc":
        return {"macro": {"acc": 50.0}, "trust": own, **about}
    return {"runs": [{"predictions": f"{seed}.pred", "trust": own} for seed in (1, 2)], "mean": {"chrf": 50.0}, **about}


def search_result(scores: list[float], alpha: str, measure: str = "bleu") -> dict[str, Any]:
    """What ``evaluate search --json`` writes of beams of 1 and 5 and of exact search."""
    rows = [
        {"beam": beam, measure: score, "length_ratio": score / 40, "errors": 0.0, "empty": 0.0}
        for beam, score in zip((1, 5, None), scores)
    ]
    about = {"measure": measure, "lines": 10, "proven": 9, "signature": f"search|alpha:{alpha}|version:0.1.0"}
    return {**about, "searches": rows}


SOURCE = ["<lang:english>", "<tag:V>", "<tag:V.PTCP>", "<tag:PST>", "d", "r", "a", "w"]
DRAW_PATHS = [
    ([*"drawed", "</s>"], [1, 1, 1, 1, 0.664, 1, 1], "finished"),
    ([*"drawn", "</s>"], [1, 1, 1, 1, 0.322, 1], "finished"),
    ([*"draw", "</s>"], [1, 1, 1, 1, 0.014], "finished"),
]


def run_folder(folder: Path) -> Path:
    """Fill a folder as a run does, with a sentence of 200 words among its examples."""
    folder.mkdir()
    write_lines(folder / "model_metrics.jsonl", metrics_rows(1.5, 1.5, 92))
    certificates = [certificate([("walked", 0.75), ("walkt", 0.25)], line=line) for line in (1, 2, 3)]
    certificates += [
        certificate([("walked", 1.0)], line=4, complete=None, optimal=None, reason="length_penalty is set")
    ]
    write_lines(folder / "test.jsonl", [*certificates, void_record(5)])
    rng = random.Random(1)
    words = [rng.choice(WORDS) for _ in range(200)]
    half = [
        ([*words, "</s>"], [0.99] * 200 + [1.0], "finished"),
        ([*words[:9], "sight"], [0.99] * 9 + [0.01], "dropped"),
    ]
    dropped = {"complete": False, "mass_found": 0.134, "best_dropped_log_prob": math.log(0.01)}
    write_lines(
        folder / "examples.trace.jsonl",
        [trace(1, DRAW_PATHS, SOURCE), trace(2, half, words, mass_dropped=0.866, **dropped)],
    )
    own = forced([*"drawn", "</s>"], [{}, {}, {}, {}, {"e": 0.664, "n": 0.322, "</s>": 0.014}, {}], SOURCE)
    write_lines(folder / "examples.forced.jsonl", [own])
    result = inflection_result(95.25, "1.5/1.5", "1", "none", "bundled", 2)
    (folder / "evaluation.json").write_text(json.dumps(result), encoding="utf-8")
    numbers = {"target_types": 2.25, "source_words": 1.5, "steps": 9, "signature": "sparsity|src:dev|alpha:1.5/1.5"}
    (folder / "sparsity.json").write_text(json.dumps(numbers), encoding="utf-8")
    (folder / "train.yaml").write_text("optim: adam\n", encoding="utf-8")
    return folder
