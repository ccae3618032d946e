"""The output layer in several processes: gradients averaged over them equal those of the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from onmt_entmax.entmax import linear_entmax_loss

PROCESSES, ROWS, VOCAB = 2, 12, 600


class Model(nn.Module):
    """Embeddings that are also the output layer's weight."""

    def __init__(self, alpha):
        super().__init__()
        torch.manual_seed(3)
        self.embeddings = nn.Embedding(VOCAB, 5)
        self.hidden = nn.Linear(5, 5)
        self.bias = nn.Parameter(torch.randn(VOCAB))
        self.alpha = alpha

    def forward(self, tokens, target):
        hidden = self.hidden(self.embeddings(tokens)) * 3
        return linear_entmax_loss(hidden, self.embeddings.weight, self.bias, target, self.alpha, "sum").loss


def batch():
    generator = torch.Generator().manual_seed(4)
    return (torch.randint(VOCAB, (ROWS,), generator=generator) for _ in range(2))


def work(rank, alpha, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=PROCESSES)
    model = DistributedDataParallel(Model(alpha))
    part = slice(rank * ROWS // PROCESSES, (rank + 1) * ROWS // PROCESSES)
    for _ in range(2):  # gradients accumulate over two passes
        model(*(tensor[part] for tensor in batch())).backward()
    torch.save({name: p.grad for name, p in model.module.named_parameters()}, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("alpha", [1.33, 1.5])
def test_gradients_of_two_processes(alpha, tmp_path):
    torch.multiprocessing.spawn(work, (alpha, tmp_path), PROCESSES)
    whole = Model(alpha)
    for _ in range(2):
        (whole(*batch()) / PROCESSES).backward()
    for rank in range(PROCESSES):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found.keys() == dict(whole.named_parameters()).keys()
        for name, parameter in whole.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad)
