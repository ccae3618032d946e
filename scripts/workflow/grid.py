"""A grid of models, from the corpus to the paper's table, run by Snakemake; the shell scripts are fronts to it.

python scripts/workflow/grid.py inflection medium --data data/conll2018/task1 --output runs/medium
python scripts/workflow/grid.py inflection medium --pairs 2/1.5 1.5/1.5 --ensembles 2/1.5,1.5/1.5 2/1.5,1.5/1.5:1
python scripts/workflow/grid.py translation de-en --pairs 1/1 1.5/1.5 --seeds 1 --dry-run
python scripts/workflow/grid.py alpha-grid de-en --alphas 1 1.25 1.5 1.75 2 2.25

The same command again goes on where it was; see docs/reproducing.md.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import ensembles
import estimate
import jobs
import lengths

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.files import iterate_lines, parse_yaml, read_json, read_text, sha256, write_json
from onmt_entmax.tasks.inflection.format import SETTINGS, find_corpora
from onmt_entmax.tasks.prepared import MANIFEST
from onmt_entmax.tasks.translation.readers import split_direction
from onmt_entmax.tasks.translation.scores import raw_bleu, raw_tokenizer_for

HERE = Path(__file__).resolve().parent
CONFIGS = HERE.parents[1] / "configs"
TASKS = ("inflection", "translation", "alpha-grid")
CORPUS = {"de-en": "iwslt17", "en-de": "iwslt17", "ja-en": "kftt", "en-ja": "kftt", "ro-en": "wmt16", "en-ro": "wmt16"}
ALPHAS = ("1", "1.5", "2")
ALPHA_GRID = ("1", "1.25", "1.33", "1.5", "1.67", "1.75", "2", "2.25", "2.5")
DEFAULT_SEEDS = {"inflection": "123", "translation": "123", "alpha-grid": "1"}
# whole numbers of a configuration that are reckoned with here, and the least that they may be
NUMBERS = dict.fromkeys(("batch_size", "valid_steps", "save_checkpoint_steps", "accum_count", "bucket_size"), 1)
NUMBERS |= {"train_steps": 0, "early_stopping": 0, "keep_checkpoint": -1, "world_size": 0}
# what a model is made of: an output folder holds models of one kind only
FIXED = ("task", "name", "prepare", "data", "settings", "average")


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Read the command line; what follows ``--`` goes to Snakemake as it is."""
    own, extra = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(
        prog="grid", description=__doc__.split("\n")[0], epilog="What follows -- goes to Snakemake.", allow_abbrev=False
    )
    add = parser.add_argument
    add("task", metavar="TASK", help=", ".join(TASKS))
    add("name", metavar="NAME", help="inflection: the setting, e.g. medium; else the direction, e.g. de-en")
    add("--pairs", nargs="+", metavar="OUT/ATT", help="alphas of output and attention (default: the paper's)")
    add("--alphas", nargs="+", metavar="ALPHA", help=f"alpha-grid: for each side (default: {' '.join(ALPHA_GRID)})")
    add("--seeds", nargs="+", metavar="SEED", help="(default: 1 2 3; alpha-grid: 1)")
    mixed = "inflection: pairs with seeds (default: all), e.g. 2/1.5:1+2,1.5/1.5; the best of them on dev is tested"
    add("--ensembles", nargs="+", metavar="PAIRS", help=mixed)
    add("--languages", nargs="+", metavar="LANG", help="inflection: (default: all of the setting)")
    for unit in ("steps", "epochs", "valid-steps", "valid-epochs"):
        what = "length of training" if unit in ("steps", "epochs") else "between validations"
        add(f"--{unit}", metavar="N", help=f"{what} in {unit.rpartition('-')[2]} (default: from the configuration)")
    averaged = "decode with the mean of the weights of the last N checkpoints, an epoch apart (default: the best one)"
    add("--average", metavar="N", help=averaged)
    add("--config", type=Path, metavar="FILE", help="of the models (default: configs/TASK/NAME.yaml)")
    add("--corpus", metavar="NAME", help="translation: as for `onmt_entmax prepare` (default: the direction's)")
    add("--data", nargs="+", type=Path, metavar="FOLDER", help="the corpus (default: where scripts/download_* put it)")
    add("--prepared", type=Path, metavar="FOLDER", help="output of `onmt_entmax prepare`, in place of --data")
    add("--task-name", metavar="NAME", help="inflection: for signatures (default: conll2018.1)")
    add("--max-length", metavar="N", help="of decoded outputs (default: OpenNMT-py's)")
    add("--raw-tokenizer", metavar="NAME", help="translation: as for `onmt_entmax evaluate` (default: the language's)")
    add("--output", type=Path, metavar="FOLDER", help="(default: runs/TASK-NAME)")
    add("--jobs", metavar="N", help="at the same time (default: one per core)")
    add("--gpus", default="0", metavar="N", help="of this machine, one per job (default: none)")
    add("--profile", type=Path, metavar="FOLDER", help="Snakemake profile for a cluster, e.g. scripts/workflow/slurm")
    add("--dry-run", action="store_true", help="show the plan and an estimate of the time")
    return parser.parse_args(own), extra


def main(argv: list[str] | None = None) -> int:
    """Run or plan a grid. Returns Snakemake's exit status, or 2 with one line for a mistake of the user."""
    try:
        args, extra = parse(list(sys.argv[1:] if argv is None else argv))
        if importlib.util.find_spec("snakemake") is None:
            raise UserError("Snakemake is not installed. Run `pip install 'snakemake>=8'` (Python 3.11 or newer).")
        grid, output = settings(args)
        parallel = _number("jobs", args.jobs, 1) if args.jobs else max(grid["gpus"], jobs.cores())
        if args.dry_run:
            check_output(grid, output)
            return plan(grid, output, parallel)
        with jobs.locked(output / ".lock", f"{output} is in use by another run of this command.") as lock:
            check_output(grid, output)
            write_json(output / jobs.GRID, grid)
            status = run(output, snakemake(args, output, parallel, grid["gpus"], extra), lock)
        if status and (table := estimate.so_far(grid, output)):
            print(*table, sep="\n")
        return status if status else show(grid, output)
    except KeyboardInterrupt:
        print("grid: interrupted; the same command goes on where it was", file=sys.stderr)
        return 130
    except (UserError, OSError) as error:
        print(f"grid: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def settings(args: argparse.Namespace) -> tuple[dict, Path]:
    """Check all arguments and make the content of ``grid.json``, and the output folder."""
    if args.task not in TASKS:
        raise invalid_setting("task", args.task, choices(TASKS))
    inflection = args.task == "inflection"
    if inflection and args.name not in SETTINGS:
        raise invalid_setting("setting", args.name, choices(SETTINGS))
    if not (inflection or args.corpus or args.prepared or args.name in CORPUS):
        raise invalid_setting("direction", args.name, choices(CORPUS) + " Others need --corpus or --prepared.")
    output = (args.output or Path("runs", f"{args.task}-{args.name}")).resolve()
    grid = {
        "task": "inflection" if inflection else "translation",
        "name": args.name,
        "data": str(args.prepared.resolve() if args.prepared else output / "data"),
        "prepare": None if args.prepared else prepare_words(args),
        "settings": configuration(args),
        "average": _given(args, "average", 2),
        "length": {name: _given(args, name) for name in ("steps", "epochs", "valid_steps", "valid_epochs")},
        "pairs": pairs(args),
        "seeds": sorted({_number("seeds", seed, 0) for seed in args.seeds or DEFAULT_SEEDS[args.task]}),
        "decode": ["-beam_size", "5", "-n_best", "1", "-batch_size", "64"],
        "raw_tokenizer": raw_tokenizer(args),
        "gpus": _number("gpus", args.gpus, 0),
        "cluster": args.profile is not None,
        "manifest": manifest(args, output),
        "targets": ["table1.md", "sparsity.md"] if inflection else ["table2.md", "table3.md", "training-speed.svg"],
    }
    if args.ensembles and not inflection:
        raise invalid_setting("ensembles", " ".join(args.ensembles), "It is for inflection.")
    grid["ensembles"] = ensembles.members(args.ensembles or [], grid["pairs"], grid["seeds"])
    if grid["ensembles"]:
        grid["targets"].append("ensembles.md")
    if args.task == "alpha-grid":
        for option in ("average", "max_length"):
            if value := getattr(args, option):
                raise invalid_setting(option.replace("_", "-"), value, "alpha-grid decodes nothing.")
        grid["targets"] = ["alpha-grid.svg"]
    if args.max_length:
        grid["decode"] += ["-max_length", str(_number("max-length", args.max_length, 1))]
    check_length(grid)
    if args.prepared:
        check_prepared(args, "setting" if inflection else "direction")
        lengths.lengths(grid, lengths.training_lines(args.prepared))
    if grid["gpus"] and not args.profile:
        import torch

        if grid["gpus"] > torch.cuda.device_count():
            raise invalid_setting("gpus", grid["gpus"], f"PyTorch sees {torch.cuda.device_count()} on this machine.")
    if args.profile and not (args.profile / "config.yaml").is_file():
        raise invalid_setting("profile", args.profile, "It has no config.yaml; scripts/workflow/slurm has one.")
    return grid, output


def manifest(args: argparse.Namespace, output: Path) -> str:
    """The manifest's path for Snakemake, which works in the output folder and takes braces in a path for a wildcard."""
    if args.prepared:
        path = str(args.prepared.resolve() / MANIFEST)
        if set("{}") & set(path):
            raise invalid_setting("prepared", args.prepared, "Its path must not have braces ({ or }).")
        return path
    path = str(output / "data" / MANIFEST)
    return f"data/{MANIFEST}" if set("{}") & set(path) else path


def check_prepared(args: argparse.Namespace, key: str) -> None:
    """Check that ``--prepared`` holds text of the setting or direction asked for, and that nothing contradicts it."""
    path = args.prepared / MANIFEST
    if not path.is_file():
        raise invalid_setting("prepared", args.prepared, "It has no manifest.json: `onmt_entmax prepare` makes one.")
    try:
        found = read_json(path).get(key)
    except UserError:
        raise UserError(f"{path} is no manifest of `onmt_entmax prepare`; make it again.") from None
    if found != args.name:
        raise invalid_setting("prepared", args.prepared, f"Its {key} is {found}, not {args.name}.")
    for option in ("data", "languages", "corpus", "task_name"):
        if getattr(args, option):
            raise UserError(f"--prepared and --{option.replace('_', '-')}: give one of the two.")


def raw_tokenizer(args: argparse.Namespace) -> str | None:
    """What tokenises running text for its scores; None where none are computed.

    Raises:
        UserError: it is unknown or not installed, which must not be found out after days of training.
    """
    if args.task != "translation":
        if args.raw_tokenizer:
            raise invalid_setting("raw-tokenizer", args.raw_tokenizer, "It is for translation.")
        return None
    name = args.raw_tokenizer or raw_tokenizer_for(args.name.rpartition("-")[2])
    raw_bleu(name)
    return name


def pairs(args: argparse.Namespace) -> list[str]:
    """The alphas of output and attention as ``OUTPUT_ATTENTION``, in order and without repetition."""
    if args.alphas and args.task != "alpha-grid":
        raise invalid_setting("alphas", " ".join(args.alphas), f"It is for alpha-grid; {args.task} has --pairs.")
    if args.task == "alpha-grid":
        if args.pairs:
            raise invalid_setting("pairs", " ".join(args.pairs), "alpha-grid has --alphas.")
        wanted = [text for alpha in args.alphas or ALPHA_GRID for text in (f"1.5/{alpha}", f"{alpha}/1.5")]
    elif args.task == "inflection":
        wanted = args.pairs or [f"{output}/{attention}" for output in ALPHAS for attention in ALPHAS]
    else:
        wanted = args.pairs or [f"{alpha}/{alpha}" for alpha in ALPHAS]
    found = set()
    for text in wanted:
        try:
            output, attention = (float(part) for part in text.split("/"))
        except ValueError:
            output = attention = 0.0
        if not (1 <= output < 100 and 1 <= attention < 100):
            name, value = ("alphas", text.replace("1.5/", "")) if args.task == "alpha-grid" else ("pairs", text)
            rule = "Alphas are at least 1" + ("." if name == "alphas" else ", written OUTPUT/ATTENTION, e.g. 1.5/2.")
            raise invalid_setting(name, value, rule)
        found.add((output, attention))
    return [f"{output:g}_{attention:g}" for output, attention in sorted(found)]


def configuration(args: argparse.Namespace) -> dict:
    """Read the YAML of the models."""
    default = CONFIGS / ("inflection" if args.task == "inflection" else "translation") / f"{args.name}.yaml"
    path = args.config or default
    if not path.is_file():
        raise invalid_setting("config", path, "There is no such file; name one with --config.")
    found = parse_yaml(read_text(path), str(path))
    for key in ("train_steps", "batch_size"):
        if not isinstance(found, dict) or key not in found:
            raise UserError(f"{path}: `{key}` is missing.")
    for key, least in NUMBERS.items():
        values = found[key] if isinstance(found.get(key), list) and key == "accum_count" else [found.get(key, least)]
        for value in values or [None]:
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise invalid_setting(key, repr(value), f"In {path} it must be a whole number of at least {least}.")
    own = [key for key in found if key in jobs.OWN]
    if own:
        rule = "The grid gives it: text by --data or --prepared, alphas by --pairs, the rest by itself."
        raise UserError(f"{path}: `{own[0]}` has no place in a grid's configuration. {rule}")
    return found


def prepare_words(args: argparse.Namespace) -> list[str]:
    """The arguments of ``onmt_entmax prepare``; the corpus must be there."""
    if args.task == "inflection":
        if args.corpus:
            raise invalid_setting("corpus", args.corpus, "It is for translation.")
        folders = args.data or [Path("data/conll2018/task1")]
        if not args.data and not folders[0].is_dir():
            raise UserError(f"{folders[0]}: no such folder. Run scripts/download_conll2018.sh, or give --data.")
        found = find_corpora(folders, args.name, args.languages)
        languages = list(found)
        for language, corpus in found.items():
            if corpus.test is None or not corpus.test.stat().st_size:
                raise UserError(f"{language} has no test set ({language}-test), which a grid scores its models on.")
        task = args.task_name or "conll2018.1"
        words = ["inflection", "--setting", args.name, "--name", task, "--languages", *languages]
        return [*words, "--data", *(str(folder.resolve()) for folder in folders)]
    for option in ("languages", "task_name"):
        if value := getattr(args, option):
            shown = value if isinstance(value, str) else " ".join(value)
            raise invalid_setting(option.replace("_", "-"), shown, "It is for inflection.")
    corpus = args.corpus or CORPUS[args.name]
    split_direction(corpus, args.name)
    if corpus == "plain":
        raise invalid_setting("corpus", corpus, "Run `onmt_entmax prepare translation`, and give --prepared.")
    folders = args.data or [Path("data", corpus)]
    if len(folders) != 1:
        raise invalid_setting("data", " ".join(map(str, folders)), "Translation has one folder.")
    if not folders[0].is_dir():
        raise UserError(f"{folders[0]}: no such folder. Run a script scripts/download_*.sh, or give --data.")
    return ["translation", "--corpus", corpus, "--direction", args.name, "--data", str(folders[0].resolve())]


def check_length(grid: dict) -> None:
    """Check what says how long a training is, and fill in the paper's distance between validations for inflection."""
    length, found = grid["length"], grid["settings"]
    for first, second in (("steps", "epochs"), ("valid_steps", "valid_epochs")):
        if None not in (length[first], length[second]):
            raise UserError(f"--{first.replace('_', '-')} and --{second.replace('_', '-')}: give one of the two.")
    if length["valid_steps"] is None and length["valid_epochs"] is None and "valid_steps" not in found:
        if grid["task"] != "inflection":
            raise UserError("the configuration lacks `valid_steps`; add it, or give --valid-steps or --valid-epochs.")
        length["valid_epochs"] = 1 if grid["name"] == "high" else 10
    if found.get("batch_type", "sents") != "sents":
        for epochs, steps in (("epochs", "--steps"), ("valid_epochs", "--valid-steps")):
            if length[epochs] is not None:
                rule = f"Epochs are known for `sents` only: give {steps}."
                raise invalid_setting("batch_type", found["batch_type"], rule)
    if grid["average"] and length["epochs"] is not None and length["epochs"] < grid["average"]:
        rule = f"A training of {length['epochs']} epochs has as many checkpoints, an epoch apart."
        raise invalid_setting("average", grid["average"], rule)
    endless = length["steps"] is None and length["epochs"] is None and not found["train_steps"]
    if endless and not found.get("early_stopping"):
        raise UserError("the configuration has neither `train_steps` nor `early_stopping`: give --steps or --epochs.")


def check_output(grid: dict, output: Path) -> None:
    """Refuse to mix models of different kinds in one folder. Pairs, seeds and a longer training may be added."""
    path = output / jobs.GRID
    if not path.is_file():
        return
    old = read_json(path)
    changed = [key for key in FIXED if old.get(key) != grid[key]]
    names = {"prepare": "data or languages", "settings": "configuration", "average": "--average"}
    if changed:
        what = names.get(changed[0], changed[0])
        raise UserError(f"{output} was made with another {what}. Give another --output, or delete it.")
    manifest = Path(grid["data"]) / MANIFEST
    if not manifest.is_file():
        return
    if grid["prepare"]:
        check_corpus(grid["prepare"], manifest, output)
    if old.get("length") != grid["length"]:
        lines = lengths.training_lines(manifest.parent)
        before, now = (lengths.lengths(one, lines)["train_steps"] for one in (old, grid))
        if (now or math.inf) < (before or math.inf):
            rule = f"{output} was made with {before or 'no limit'}; a training can only become longer."
            raise invalid_setting("steps", now, f"{rule} Give another --output.")
        before, now = (lengths.wanted(one, lines, "valid_") for one in (old, grid))
        if now != before:  # it decides when the rate is halved, and which checkpoint is the best one
            rule = f"{output} was made with {before}; its models would not be alike."
            raise invalid_setting("valid-steps", now, f"{rule} Give another --output.")


def check_corpus(words: list[str], manifest: Path, output: Path) -> None:
    """Refuse a corpus that is not the one that the text of a grid was prepared from."""
    folders = [Path(word) for word in words[words.index("--data") + 1 :]]
    for name, digest in read_json(manifest).get("inputs", {}).items():
        found = [folder / name for folder in folders if (folder / name).is_file()]
        if digest not in map(sha256, found):
            what = f"another {name} than there is now in {' '.join(map(str, folders))}"
            raise UserError(f"{output} was prepared from {what}. Give another --output, or delete it.")


def snakemake(args: argparse.Namespace, output: Path, parallel: int, gpus: int, extra: list[str]) -> list[str]:
    """The command that runs the grid."""
    words = [sys.executable, "-m", "snakemake", "--snakefile", str(HERE / "Snakefile"), "--directory", str(output)]
    if args.profile:
        words += ["--profile", str(args.profile.resolve()), "--jobs", str(parallel)]
    else:
        words += ["--cores", str(parallel), "--resources", f"gpu={gpus}"]
    # Snakemake's own lock survives a kill; ours does not. Jobs do not depend on the wording of their rule.
    words += ["--nolock", "--rerun-incomplete", "--keep-going", "--rerun-triggers", "mtime", "params", "input"]
    return [*words, "--quiet", "rules", *extra]


def environment(output: Path) -> dict[str, str]:
    """The environment for Snakemake, which needs a folder for its cache: in the output where there is no home."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~"), ".cache"))
    with contextlib.suppress(OSError):
        if cache.is_absolute():
            (cache / "snakemake").mkdir(parents=True, exist_ok=True)
            if os.access(cache / "snakemake", os.W_OK):
                return dict(os.environ)
    return {**os.environ, "XDG_CACHE_HOME": str(output / ".cache")}


def run(output: Path, words: list[str], lock: int) -> int:
    """Run Snakemake; its own chatter goes to a file, what jobs say is shown."""
    with open(output / "snakemake.log", "a", encoding="utf-8") as log:
        failure, reported = "", False
        process = subprocess.Popen(
            words, stderr=subprocess.PIPE, encoding="utf-8", errors="replace", pass_fds=[lock], env=environment(output)
        )
        with process:
            for line in process.stderr:
                log.write(line)
                log.flush()
                if line.startswith("grid: ") or " steps (" in line:
                    reported = reported or line.startswith("grid: ")
                    print(line, end="", file=sys.stderr, flush=True)
                elif re.search(r"[a-z](Error|Exception)\b|^(Error|Exception) ", line):
                    failure = failure or line.strip()
    if process.returncode:
        if not reported and failure:  # not of a job of ours, but of Snakemake or its profile
            print(f"grid: {failure}", file=sys.stderr)
        print(f"grid: not everything could be done (log: {output / 'snakemake.log'})", file=sys.stderr)
    return process.returncode


def plan(grid: dict, output: Path, parallel: int) -> int:
    """Print what a run would do and how long it may take."""
    print(*estimate.plan(grid, output, parallel), *estimate.so_far(grid, output), sep="\n")
    return 0


def show(grid: dict, output: Path) -> int:
    """Print what was made."""
    for path in (output / name for name in grid["targets"]):
        if not path.is_file():  # what follows -- may have asked Snakemake for less
            continue
        print(f"\n{path}")
        if path.suffix == ".md":
            print(*iterate_lines(path), sep="\n")
    return 0


def _given(args: argparse.Namespace, name: str, least: int = 1) -> int | None:
    value = getattr(args, name)
    return None if value is None else _number(name.replace("_", "-"), value, least)


def _number(name: str, text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise invalid_setting(name, text, f"It must be a whole number of at least {least}.")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
