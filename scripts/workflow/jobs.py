"""The jobs of a grid, one per call; Snakemake runs them in the output folder, which holds ``grid.json``.

python jobs.py train 1.5_1.5 2       # in the output folder; goes on from the newest whole checkpoint
python jobs.py decode 1.5_1.5 2

Every job runs stock commands and ``onmt_entmax`` only; each is written to the job's log before it runs.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import ensembles
import yaml
from lengths import lengths, training_lines
from locks import device, locked
from paragraph import sparsity_paragraph

from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.files import (
    json_line,
    read_json,
    read_lines,
    read_records,
    read_text,
    sha256,
    write_json,
    write_lines,
    write_text,
    write_whole,
)
from onmt_entmax.progress import duration
from onmt_entmax.report.metrics import read_rows
from onmt_entmax.signatures import parse_signature
from onmt_entmax.tasks.prepared import MANIFEST

GRID = "grid.json"
ENSEMBLES = Path("ensembles")
AVERAGE = "model_average.pt"
TEXT = "training_text.json"
SEEN = ("train.src", "train.tgt", "vocab.src", "vocab.tgt", "dev.src", "dev.tgt")  # the text of a training
# what the grid gives to `onmt_train`, and no configuration of its models may
OWN = (
    *("data", "src_vocab", "tgt_vocab", "save_model", "save_data", "train_from"),
    *("generator_function", "generator_alpha", "global_attention_function", "global_attention_alpha"),
)
STEP = re.compile(r"model_step_(\d+)\.pt")


def main(argv: list[str] | None = None) -> int:
    """Run one job. Returns 0, or 1 with one line that says what went wrong and where the log lies."""
    parser = argparse.ArgumentParser(description="One job of a grid.")
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("arguments", nargs="*")
    args = parser.parse_args(argv)
    name = " ".join([args.job, *args.arguments])
    try:
        JOBS[args.job](read_json(GRID), *args.arguments)
    except UserError as error:
        print(f"grid: {name} failed: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def prepare(grid: dict) -> None:
    """Turn the corpus into training text."""
    log = Path("prepare.log")
    call(["onmt_entmax", "prepare", *grid["prepare"], "--output", grid["data"]], log)
    print("grid: " + read_lines(log)[-1], flush=True)


def train(grid: dict, pair: str, seed: str) -> None:
    """Train one model, from its newest whole checkpoint if it has one; ``trained.json`` says that it is done."""
    folder = run_folder(pair, seed)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", f"{folder}: another process trains there; wait for it or end it.") as lock:
        _check_text(Path(grid["data"]), folder)
        settings = train_settings(grid, pair, int(seed), folder)
        newest = newest_checkpoint(folder)
        done = 0 if newest is None else step_of(newest)
        if newest is not None:
            settings["train_from"] = str(newest)
            print(f"grid: {folder} goes on from step {done}", flush=True)
        if settings["train_steps"] == 0 or done < settings["train_steps"]:
            write_text(folder / "train.yaml", yaml.safe_dump(settings, sort_keys=False))
            words = ["onmt_train", "-config", str(folder / "train.yaml")]
            call(words, folder / "train.log", lock=lock, gpus=own_gpus(grid), watch=lambda line: _report(folder, line))
        if grid.get("average"):
            _average(folder, grid["average"], settings["save_checkpoint_steps"])
        write_json(folder / "trained.json", _summary(folder, settings["train_steps"]))


def decode(grid: dict, pair: str, seed: str) -> None:
    """Decode the test set with certificates; for inflection the development set too, and score both."""
    folder = run_folder(pair, seed)
    if grid["task"] == "inflection":
        _translate(grid, [folder], folder, ["dev", "test"], [])
        for split in ("dev", "test"):
            _evaluate_inflection(grid, folder, split, pair, seed, [folder])
    else:
        _translate(grid, [folder], folder, ["test"], [])


def ensemble(grid: dict, pair: str) -> None:
    """Decode the test set with all seeds of a pair together, by averaged probabilities, and score it."""
    _decode_members(grid, Path("runs", pair, "ensemble"), [(pair, seed) for seed in grid["seeds"]], "test")


def candidate(grid: dict, name: str) -> None:
    """Decode the development set with the members of one of ``--ensembles``, and score it."""
    _decode_members(grid, ENSEMBLES / name, grid["ensembles"][name], "dev")


def chosen(grid: dict) -> None:
    """Decode the test set with the one of ``--ensembles`` that is best on the development set, and with no other.

    It is compared with the single model that is best there. On a tie the earlier one counts.
    """
    dev = {name: _accuracy(ENSEMBLES / name) for name in grid["ensembles"]}
    best = max(dev, key=dev.__getitem__)
    folders = [run_folder(pair, seed) for pair in grid["pairs"] for seed in grid["seeds"]]
    singles = {folder: _accuracy(folder) for folder in folders}
    single = max(singles, key=singles.__getitem__)
    _decode_members(grid, ENSEMBLES / best, grid["ensembles"][best], "test", ["--compare", single / "test.pred"])
    write_json(
        ENSEMBLES / "chosen.json", {"name": best, "dev": dev, "single": str(single), "single_dev": singles[single]}
    )
    write_text("ensembles.md", ensembles.paragraph(grid, ENSEMBLES))


def sparsity(grid: dict, pair: str, seed: str) -> None:
    """Measure attended source words and target types on the development set (Table 3)."""
    folder = run_folder(pair, seed)
    words = ["onmt_entmax", "sparsity", "--model", _decoded(grid, folder), "--output", folder / "sparsity.json"]
    words += ["--src", Path(grid["data"], "dev.src"), "--tgt", Path(grid["data"], "dev.tgt"), *_recipe(grid, [folder])]
    call([*words, *(["--gpu", "0"] if grid["gpus"] else [])], folder / "sparsity.log", gpus=own_gpus(grid))


def evaluate(grid: dict, pair: str) -> None:
    """Score the translations of all seeds of a pair."""
    folders = [run_folder(pair, seed) for seed in grid["seeds"]]
    words = ["onmt_entmax", "evaluate", "translation", "--data", grid["data"], "--alpha", pair.replace("_", "/")]
    words += ["--seed", ",".join(map(str, grid["seeds"])), "--json", Path("runs", pair, "evaluation.json")]
    words += ["--raw-tokenizer", grid["raw_tokenizer"], "--steps", _steps(folders, ","), *_recipe(grid, folders)]
    words += ["--predictions", *(folder / "test.pred" for folder in folders)]
    words += ["--certificates", *(folder / "test.jsonl" for folder in folders)]
    call(words, Path("runs", pair, "evaluate.log"))


def tables(grid: dict, *numbers: str) -> None:
    """Write the paper's tables from all results, and for inflection the paragraph on sparsity."""
    for number in numbers:
        call(["onmt_entmax", "table", number, "--input", *results(grid, number), "--output", f"table{number}.md"],
             Path("tables.log"))  # fmt: skip
    if grid["task"] == "inflection":
        write_text("sparsity.md", sparsity_paragraph(grid))


def figure(grid: dict, name: str) -> None:
    """Draw a figure from the metrics of all runs."""
    metrics = [run_folder(pair, seed) / "model_metrics.jsonl" for pair in grid["pairs"] for seed in grid["seeds"]]
    call(["onmt_entmax", "figure", name, "--input", *metrics, "--output", f"{name}.svg"], Path(f"{name}.log"))


def run_folder(pair: str, seed: int | str) -> Path:
    """The folder of one model."""
    return Path("runs", pair, f"seed{seed}")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_gpus(grid: dict) -> int:
    """How many of this machine's GPUs the grid shares out among its jobs."""
    return 0 if grid["cluster"] else grid["gpus"]


def train_settings(grid: dict, pair: str, seed: int, folder: Path) -> dict:
    """The whole configuration of a training: that of the data, of the grid, and what is this model's own.

    Args:
        grid: the content of ``grid.json``.
        pair: ``OUTPUT_ATTENTION``.
        seed: of the training.
        folder: where the model goes.
    """
    data = Path(grid["data"])
    settings = {**yaml.safe_load(read_text(data / "data.yaml")), **grid["settings"]}
    output, attention = (float(part) for part in pair.split("_"))
    rows = training_lines(data)
    settings.update(lengths(grid, rows))
    if "bucket_size" in settings:  # of equal sources in a bucket larger than the text OpenNMT-py drops some
        settings["bucket_size"] = min(settings["bucket_size"], rows)
    settings.update(
        generator_function="entmax", generator_alpha=output,
        global_attention_function="entmax", global_attention_alpha=attention,
        seed=seed, save_model=str(folder / "model"), save_data=str(folder / "sample"), keep_best=True,
    )  # fmt: skip
    settings.setdefault("keep_checkpoint", 2)
    average = grid.get("average")
    if average and 0 <= settings["keep_checkpoint"] <= average:
        settings["keep_checkpoint"] = average + 1  # an early stop adds one between two epochs
    if grid["gpus"]:
        settings.update(world_size=1, gpu_ranks=[0])
    return settings


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    return int(STEP.fullmatch(checkpoint.name)[1])


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the highest step that is whole, or None."""
    return next(whole_checkpoints(folder), None)


def whole_checkpoints(folder: Path) -> Iterator[Path]:
    """The checkpoints that are whole, the highest step first."""
    found = [path for path in folder.glob("model_step_*.pt") if STEP.fullmatch(path.name)]
    for path in sorted(found, key=step_of, reverse=True):
        if zipfile.is_zipfile(path):  # a truncated one has lost the directory at its end
            yield path
        else:
            _pass_over(path)


@functools.cache  # once in a job
def _pass_over(path: Path) -> None:
    print(f"grid: {path} is not whole: passed over", flush=True)


def call(
    words: list, log: Path, lock: int | None = None, gpus: int = 0, watch: Callable[[str], None] | None = None
) -> None:
    """Run a command of this Python's environment, its output going to a log.

    Args:
        words: the command.
        log: written on.
        lock: a lock that the command holds as long as it lives.
        gpus: how many this machine gives to the grid; the command gets one of them.
        watch: is given each line of output.

    Raises:
        UserError: it failed; its last line and the log.
    """
    words = [str(word) for word in words]
    program = Path(sys.executable).with_name(words[0])
    last = "no message"
    with device(gpus) as (own, locks), open(log, "a", encoding="utf-8", newline="\n") as file:
        file.write(f"$ {shlex.join(words)}\n")
        file.flush()
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **own, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            [str(program), *words[1:]] if program.is_file() else words, env=environment, encoding="utf-8",
            errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            pass_fds=[*locks, *([] if lock is None else [lock])],
        )  # fmt: skip
        with process:
            for line in process.stdout:
                file.write(line)
                file.flush()
                last = line.strip() or last
                if watch is not None:
                    watch(line)
    if process.returncode:
        raise UserError(f"{last} (exit status {process.returncode}; log: {log.resolve()})")


def _check_unchanged(data: Path, names: Iterable[str]) -> None:
    """Refuse prepared files that are not what the manifest beside them says."""
    outputs = read_json(data / MANIFEST).get("outputs", {})
    for name in names:
        if name in outputs and sha256(data / name) != outputs[name]:
            raise UserError(f"{data / name} has changed since `onmt_entmax prepare` wrote it: prepare the text again.")


def _check_text(data: Path, folder: Path) -> None:
    """Note the checksums of the text that a training sees, or refuse to go on with another one."""
    outputs = read_json(data / MANIFEST).get("outputs", {})
    now = {name: outputs.get(name) for name in SEEN}
    note = folder / TEXT
    before = read_json(note) if note.is_file() else now
    changed = [name for name in SEEN if before.get(name) != now[name]]
    if changed:
        rule = f"give another --output, or delete {folder}."
        raise UserError(f"{folder} was trained on another {changed[0]} than {data} has now: {rule}")
    _check_unchanged(data, SEEN)
    write_json(note, now)


def _report(folder: Path, line: str) -> None:
    if "Saving checkpoint" in line and STEP.search(line):
        print(f"grid: {folder} saves step {STEP.search(line)[1]}", flush=True)


def _average(folder: Path, count: int, apart: int) -> None:
    """Write the mean of the weights of a training's last checkpoints, those of steps that ``apart`` divides."""
    last = [path for path in whole_checkpoints(folder) if step_of(path) % apart == 0][:count]
    if len(last) < count:
        rule = f"{folder} has {len(last)} whole checkpoints. Its training was too short, or they were deleted."
        raise invalid_setting("average", count, rule)
    call(["onmt_average_models", "-models", *reversed(last), "-output", folder / AVERAGE], folder / "train.log")
    print(f"grid: {folder}: weights averaged over steps {step_of(last[-1])} to {step_of(last[0])}", flush=True)


def _decoded(grid: dict, folder: Path) -> Path:
    """The model that stands for a training: its best checkpoint, or the mean of its last ones."""
    return folder / (AVERAGE if grid.get("average") else "model_best.pt")


def _summary(folder: Path, steps: int) -> dict:
    """What became of a training."""
    rows = read_rows(folder / "model_metrics.jsonl")
    best = read_json(folder / "model_best.json")
    newest = newest_checkpoint(folder)  # validations need not divide a training
    last = max(rows[-1]["step"], 0 if newest is None else step_of(newest))
    result = {"train_steps": steps, "last_step": last, "best_step": best["step"]}
    result.update(best_accuracy=best["value"], seconds=rows[-1]["elapsed"], signature=best["signature"])
    spent = duration(result["seconds"])
    print(f"grid: {folder} trained in {spent}, best accuracy {best['value']:.2f} at step {best['step']}", flush=True)
    return result


def _translate(grid: dict, folders: list[Path], output: Path, splits: list[str], extra: list[str]) -> None:
    """Decode several splits in one go, since loading a model takes its time; ``SPLIT.pred`` and ``SPLIT.jsonl``."""
    _check_unchanged(Path(grid["data"]), [f"{split}.src" for split in splits])
    inputs = {split: read_lines(Path(grid["data"], f"{split}.src")) for split in splits}
    name = "+".join(splits)
    write_lines(output / f"{name}.src", (line for lines in inputs.values() for line in lines))
    words = ["onmt_translate", "-model", *(_decoded(grid, folder) for folder in folders)]
    words += ["-src", output / f"{name}.src", "-output", output / f"{name}.pred"]
    words += ["-certificates", output / f"{name}.jsonl", *grid["decode"], *extra]
    call([*words, *(["-gpu", "0"] if grid["gpus"] else [])], output / "decode.log", gpus=own_gpus(grid))
    (output / f"{name}.src").unlink()
    if len(splits) == 1:
        return
    predictions, certificates = read_lines(output / f"{name}.pred"), read_records(output / f"{name}.jsonl")
    start = 0
    for split, lines in inputs.items():
        own = slice(start, start + len(lines))
        write_lines(output / f"{split}.pred", predictions[own])
        numbered = ({**record, "line": line} for line, record in enumerate(certificates[own], 1))
        write_lines(output / f"{split}.jsonl", map(json_line, numbered))
        start += len(lines)
    for suffix in ("pred", "jsonl"):
        (output / f"{name}.{suffix}").unlink()


def _steps(folders: list[Path], joined: str) -> str:
    """How long models were trained, for signatures; one number where all were trained as long."""
    return joined.join(dict.fromkeys(str(read_json(folder / "trained.json")["last_step"]) for folder in folders))


def _recipe(grid: dict, folders: list[Path]) -> list[str]:
    """How a configuration differs from the paper's, for signatures: encoder, label smoothing, averaged weights."""
    encoder = grid["settings"].get("encoder_type", "rnn")
    said = [] if encoder == "brnn" else [f"encoder {encoder}"]
    said += [f"mean of {grid['average']} checkpoints"] if grid.get("average") else []
    for folder in folders:
        about = parse_signature(read_json(folder / "trained.json")["signature"])
        said += [f"{key} {about[key]}" for key in ("smoothing", "average") if about.get(key, "0") != "0"]
    return ["--recipe", ", ".join(dict.fromkeys(said))] if said else []


def _decode_members(
    grid: dict, folder: Path, members: Sequence[tuple[str, int]], split: str, extra: Sequence = ()
) -> None:
    """Decode a split with several models, pairs and seeds, together by averaged probabilities, and score it."""
    folder.mkdir(parents=True, exist_ok=True)
    folders = [run_folder(pair, seed) for pair, seed in members]
    pairs = list(dict.fromkeys(pair for pair, _ in members))
    alphas = pairs[0] if len(pairs) == 1 else "+".join(pair for pair, _ in members)
    _translate(grid, folders, folder, [split], ["-avg_raw_probs"])
    _evaluate_inflection(grid, folder, split, alphas, "+".join(str(seed) for _, seed in members), folders, extra)


def _accuracy(folder: Path) -> float:
    return read_json(folder / "dev.json")["macro"]["acc"]


def _evaluate_inflection(
    grid: dict, folder: Path, split: str, pair: str, seed: str, members: list[Path], extra: Sequence = ()
) -> None:
    words = ["onmt_entmax", "evaluate", "inflection", "--gold", Path(grid["data"], split), "--seed", seed]
    words += ["--predictions", folder / f"{split}.pred", "--certificates", folder / f"{split}.jsonl"]
    words += ["--alpha", pair.replace("_", "/"), "--steps", _steps(members, "+"), "--json", folder / f"{split}.json"]
    words += ["--train", grid["data"], *_recipe(grid, members), *extra]
    call(words, folder / "decode.log")
    if split == "test":  # under the name that `figures.sh` and `overview` look for
        write_whole(folder / "evaluation.json", (folder / "test.json").read_bytes())


def results(grid: dict, number: str, output: Path = Path()) -> list[Path]:
    """The files that a table is made of; of ensembles over several pairs the chosen one, if it is there."""
    runs = output / "runs"
    folders = [output / run_folder(pair, seed) for pair in grid["pairs"] for seed in grid["seeds"]]
    if number == "1":
        together = [runs / pair / "ensemble/test.json" for pair in grid["pairs"]] if len(grid["seeds"]) > 1 else []
        choice = output / ENSEMBLES / "chosen.json"
        if grid["ensembles"] and choice.is_file():
            name = read_json(choice)["name"]
            members = grid["ensembles"].get(name, [])  # an earlier grid may have chosen among others
            # all seeds of one pair are there already
            if len({pair for pair, _ in members}) > 1 or 0 < len(members) < len(grid["seeds"]):
                together.append(output / ENSEMBLES / name / "test.json")
        return [*(folder / "test.json" for folder in folders), *together]
    if number == "2":
        return [runs / pair / "evaluation.json" for pair in grid["pairs"]]
    return [folder / "sparsity.json" for folder in folders]


JOBS = {
    "prepare": prepare,
    "train": train,
    "decode": decode,
    "ensemble": ensemble,
    "candidate": candidate,
    "chosen": chosen,
    "sparsity": sparsity,
    "evaluate": evaluate,
    "tables": tables,
    "figure": figure,
}

if __name__ == "__main__":
    sys.exit(main())
