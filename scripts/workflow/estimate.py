"""What a grid still has to do and how long that may take, from measured speeds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import fmean

import jobs
import yaml
from lengths import epoch_steps, lengths, training_lines

from onmt_entmax.files import read_json, read_lines, write_lines, write_text
from onmt_entmax.progress import duration
from onmt_entmax.report.metrics import read_rows
from onmt_entmax.report.table_formats import terminal
from onmt_entmax.report.tables import TABLES

WARM_UP, MEASURED = 5, 10  # steps of a calibration
LINES = 64  # of its validation


def plan(grid: dict, output: Path, parallel: int) -> list[str]:
    """Describe the jobs that are left and estimate their time.

    Args:
        grid: the content of ``grid.json``.
        output: the output folder; nothing in it changes, but a missing ``data`` is prepared for the calibration in a
            temporary folder.
        parallel: jobs at the same time.

    Returns:
        Lines of text.
    """
    runs = {(pair, seed): output / jobs.run_folder(pair, seed) for pair in grid["pairs"] for seed in grid["seeds"]}
    lines = [
        f"{grid['task']} {grid['name']}: {len(grid['pairs'])} pairs of alphas (output/attention) "
        f"{' '.join(pair.replace('_', '/') for pair in grid['pairs'])}, seeds {' '.join(map(str, grid['seeds']))}",
        f"output: {output}",
    ]
    prepared = (Path(grid["data"]) / "manifest.json").is_file()
    with tempfile.TemporaryDirectory(prefix="onmt-entmax-plan-") as scratch:
        if not prepared:
            trial = {**grid, "data": str(Path(scratch, "data"))}
            jobs.call(["onmt_entmax", "prepare", *grid["prepare"], "--output", trial["data"]], Path(scratch, "log"))
        else:
            trial = grid
        rows = training_lines(Path(trial["data"]))
        length = lengths(grid, rows)
        todo = {key: folder for key, folder in runs.items() if _trained_steps(folder) != length["train_steps"]}
        patience = grid["settings"].get("early_stopping", 0)
        steps = length["train_steps"] or (patience + 1) * length["valid_steps"]
        bound = f"at {'most' if length['train_steps'] else 'least'}"
        sentences = grid["settings"].get("batch_type", "sents") == "sents"
        epochs = f" ({steps / epoch_steps(grid, rows):.1f} epochs)" if sentences else ""
        stop = f", until {patience} in a row without a new best" if patience else ""
        lines.append(
            f"training: {rows} rows; {bound} {steps} steps{epochs} each, "
            f"validation every {length['valid_steps']} steps{stop}"
        )
        lines += _jobs_left(grid, output, runs, todo, prepared)
        speeds = measured(runs)
        if speeds:
            source = f"measured in {sum(len(own) for own in speeds.values())} runs of this grid"
        elif todo:
            pair = grid["pairs"][0]
            speeds = {pair: [calibrate(trial, pair, Path(scratch, "calibration"))]}
            alphas = pair.replace("_", "/")
            source = f"measured in a calibration of {MEASURED} steps with alphas {alphas}, on this machine as it is now"
    if todo:
        lines += _training_time(grid, runs, todo, speeds, source, steps, bound, parallel)
    return [*lines, *_decoding_time(grid, output, runs, parallel)]


def so_far(grid: dict, output: Path) -> list[str]:
    """The table of the results that are there, while others are missing."""
    number = "1" if grid["task"] == "inflection" else "2"
    wanted = jobs.results(grid, number, output)
    found = [path for path in wanted if path.is_file()]
    whole = len(found) == len(wanted) and (output / grid["targets"][0]).is_file()
    if "alpha-grid.svg" in grid["targets"] or not found or whole:
        return []
    return ["", f"{len(found)} of {len(wanted)} results so far:", "", terminal(TABLES[int(number)](found))]


def _trained_steps(folder: Path) -> int | None:
    """How long the training in a folder was to be (0: until early stopping), or None if it isn't done."""
    path = folder / "trained.json"
    return read_json(path)["train_steps"] if path.is_file() else None


def measured(runs: dict[tuple[str, int], Path]) -> dict[str, list[tuple[float, float]]]:
    """Pair -> (seconds of training per step, target words per second) of each run that has validated."""
    speeds: dict[str, list[tuple[float, float]]] = {}
    for (pair, _), folder in runs.items():
        path = folder / "model_metrics.jsonl"
        rows = read_rows(path) if path.is_file() else []
        if rows:
            rates = [row["words_per_second"] for row in rows if row.get("words_per_second")]
            speeds.setdefault(pair, []).append((rows[-1]["elapsed"] / rows[-1]["step"], fmean(rates or [0.0])))
    return speeds


def calibrate(grid: dict, pair: str, folder: Path) -> tuple[float, float]:
    """Train a model of the full size for a few steps.

    Args:
        grid: its ``data`` is prepared.
        pair: the alphas.
        folder: for its files.

    Returns:
        Seconds per step and target words per second.
    """
    folder.mkdir(parents=True)
    settings = jobs.train_settings(grid, pair, 1, folder)
    last = WARM_UP + MEASURED
    settings.update(train_steps=last, valid_steps=WARM_UP, save_checkpoint_steps=10**9, keep_best=False)
    settings["keep_checkpoint"] = 0
    for side in ("src", "tgt"):
        part = read_lines(settings["data"]["valid"][f"path_{side}"])[:LINES]
        write_lines(folder / f"valid.{side}", part)
        settings["data"]["valid"][f"path_{side}"] = str(folder / f"valid.{side}")
    write_text(folder / "train.yaml", yaml.safe_dump(settings))
    jobs.call(["onmt_train", "-config", folder / "train.yaml"], folder / "train.log", gpus=min(jobs.own_gpus(grid), 1))
    rows = read_rows(folder / "model_metrics.jsonl")
    seconds = (rows[-1]["elapsed"] - rows[0]["elapsed"]) / (rows[-1]["step"] - rows[0]["step"])
    return seconds, fmean(row["words_per_second"] for row in rows[1:])


def _jobs_left(grid: dict, output: Path, runs: dict, todo: dict, prepared: bool) -> list[str]:
    """One line per kind of job with how many are done."""
    found = {"prepare": (1, int(prepared)), "train": (len(runs), len(runs) - len(todo))}
    if "alpha-grid.svg" not in grid["targets"]:
        found["decode"] = (len(runs), sum((folder / "test.jsonl").is_file() for folder in runs.values()))
    if grid["task"] == "inflection" and len(grid["seeds"]) > 1:
        done = sum((output / "runs" / pair / "ensemble/test.json").is_file() for pair in grid["pairs"])
        found["ensemble"] = (len(grid["pairs"]), done)
    if grid["ensembles"]:
        done = sum((output / jobs.ENSEMBLES / name / "dev.json").is_file() for name in grid["ensembles"])
        found["candidate"] = (len(grid["ensembles"]), done)
        found["chosen"] = (1, int((output / jobs.ENSEMBLES / "chosen.json").is_file()))
    if "alpha-grid.svg" not in grid["targets"]:
        found["sparsity"] = (len(runs), sum((folder / "sparsity.json").is_file() for folder in runs.values()))
    for name in grid["targets"]:
        found[name] = (1, int((output / name).is_file()))
    return [f"  {name}: {total} ({done} done)" for name, (total, done) in found.items()]


def _training_time(grid, runs, todo, speeds, source: str, steps: int, bound: str, parallel: int) -> list[str]:
    overall = fmean(seconds for own in speeds.values() for seconds, _ in own)
    total = 0.0
    for (pair, _), folder in todo.items():
        seconds = fmean(seconds for seconds, _ in speeds[pair]) if pair in speeds else overall
        newest = jobs.newest_checkpoint(folder)
        total += seconds * max(0, steps - (jobs.step_of(newest) if newest else 0))
    words = fmean(rate for own in speeds.values() for _, rate in own)
    workers = min(parallel, len(todo), jobs.own_gpus(grid) or parallel)
    rounds = -(-len(todo) // workers)
    shared = total / len(todo) * rounds
    return [
        f"speed: {words:,.0f} target words per second, {overall:.3g} s per step ({source})",
        f"time left for training: {bound} {duration(total)} in all, {duration(shared)} with {workers} at a time "
        "(validation comes on top)",
    ]


def _decoding_time(grid: dict, output: Path, runs: dict, parallel: int) -> list[str]:
    """Decoding is estimated from finished decodings only: an untrained model decodes quite otherwise."""
    if "alpha-grid.svg" in grid["targets"]:
        return []
    seconds, left = [], 0
    for (pair, seed), folder in runs.items():
        path = output / "benchmarks" / f"decode-{pair}-seed{seed}.tsv"
        if (folder / "test.jsonl").is_file() and path.is_file():
            seconds.append(float(read_lines(path)[1].split("\t")[0]))
        else:
            left += 1
    splits = 2 if grid["task"] == "inflection" else 1  # a model decodes dev and test, or test alone
    left = left * splits + _ensembles_left(grid, output)
    if not left:
        return []
    if not seconds:
        return ["time left for decoding: unknown until the first model is decoded"]
    total = fmean(seconds) / splits * left
    workers = min(parallel, jobs.own_gpus(grid) or parallel)
    text = f"time left for decoding: {duration(total)} in all, about {duration(total / min(workers, left))}"
    return [f"{text} with {min(workers, left)} at a time (measured in {len(seconds)} decodings)"]


def _ensembles_left(grid: dict, output: Path) -> int:
    """What ensembles still have to decode, in sets for one model: an ensemble takes as long as its members together."""
    if grid["task"] != "inflection":
        return 0
    pairs = grid["pairs"] if len(grid["seeds"]) > 1 else []
    left = sum(not (output / "runs" / pair / "ensemble/test.json").is_file() for pair in pairs) * len(grid["seeds"])
    sizes = {name: len(members) for name, members in grid["ensembles"].items()}
    left += sum(size for name, size in sizes.items() if not (output / jobs.ENSEMBLES / name / "dev.json").is_file())
    chosen = (output / jobs.ENSEMBLES / "chosen.json").is_file()
    return left + (0 if chosen or not sizes else max(sizes.values()))
