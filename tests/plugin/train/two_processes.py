"""One of two processes that train together over gloo: ``python -m tests.plugin.train.two_processes RANK FOLDER``."""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import onmt_entmax

    onmt_entmax.register()
    import onmt.utils.distributed
import torch

from onmt_entmax.plugin.train.processes import from_all, share_weights
from tests.plugin.train.helpers import config, train

FOLLOWING = {
    "decay_method": "valid_loss",
    "learning_rate": 0.5,
    "keep_best": "true",
    "early_stopping": 3,
    "early_stopping_criteria": "[accuracy]",
    "valid_steps": 2,
    "report_every": 2,
}


def small_buffer() -> None:
    """Stock clears a buffer of 100 MB at every step."""
    distributed = onmt.utils.distributed
    small = functools.partial(distributed.all_reduce_and_rescale_tensors, buffer_size=1 << 20)
    distributed.all_reduce_and_rescale_tensors = small


def fail(opt, device: int) -> None:
    """What one of several processes may do: here the second one ends as ``opt.ending`` says, the first one waits."""
    if torch.distributed.get_rank() == 1:
        if opt.ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(2)
    torch.distributed.barrier()


def share(opt, device: int) -> None:
    """Each draws weights of its own, and ends up with those of the first one."""
    torch.manual_seed(torch.distributed.get_rank())
    model = torch.nn.BatchNorm1d(3)
    torch.nn.init.normal_(model.weight), torch.nn.init.normal_(model.running_mean)
    drawn = from_all(model.weight.tolist())
    share_weights(model)
    found = from_all([model.weight.tolist(), model.running_mean.tolist()])
    raise SystemExit(0 if drawn[0] != drawn[1] and found[0] == found[1] and found[0][0] == drawn[0] else 2)


def stay(opt, device: int) -> None:
    """Say that it is there, and stay."""
    (opt.folder / str(os.getpid())).touch()
    time.sleep(600)


def main(rank: int, folder: Path) -> None:
    address = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    small_buffer()
    own = folder / f"own{rank}"
    own.mkdir()
    for name in ("a", "b", "valid", "vocab"):
        for side in ("src", "tgt"):
            (own / f"{name}.{side}").write_bytes((folder / f"{name}.{side}").read_bytes())
    yaml = config(own, **FOLLOWING)
    train(yaml, folder / "whole" / "m", 8)
    torch.distributed.barrier()
    train(yaml, folder / "parts" / "m", 5)
    torch.distributed.barrier()
    train(yaml, folder / "parts" / "m", 8, "-train_from", f"{folder}/parts/m_step_5.pt")
    torch.distributed.barrier()
    # the rate is far too high, so accuracy stops improving: both have to stop, or the other one would wait for ever
    train(yaml, folder / "stopped" / "m", 0, "-learning_rate", "1000", "-save_checkpoint_steps", "2")
    torch.distributed.barrier()
    # the first process cannot write: both end, only the first one says why
    blocked = folder / "blocked"
    if rank == 0:
        (blocked / "m_step_2.pt").mkdir(parents=True)
    torch.distributed.barrier()
    try:
        train(yaml, blocked / "m", 2)
    except SystemExit as error:
        ending = f"SystemExit {error.code}"
    except ValueError as error:
        ending = str(error)
    (folder / f"rank{rank}.json").write_text(json.dumps({"ending": ending}), encoding="utf-8")
    torch.distributed.barrier()
    gc.collect()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
