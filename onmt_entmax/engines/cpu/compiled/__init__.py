"""The steps of unrolled LSTM layers and their attention, compiled: one pass over memory for a dozen operations.

For float32 on a CPU, where numba is installed (see ``kernels.compiled_for``). Matrix products stay with PyTorch; what
lies between them is here: on a step's few thousand numbers PyTorch's operations spend most of their time in being
called.

Arguments are NumPy views of contiguous tensors. Features stand first, and what belongs to a step is a block of its own
(:class:`Blocks`), whose columns are the n sentences that take part. H hidden units, B sentences, S source positions, T
target steps, N tokens.

Every function is ``threads.Shared``: its first argument, not named below, is the number of threads (of
``threads_for``), and ``share`` of ``shares`` is a thread's part of the work, hidden units or sentences.
"""

from onmt_entmax.engines.cpu.compiled.arithmetic import NO_MASK, NONE
from onmt_entmax.engines.cpu.compiled.attention import attend_backward, attend_forward, finish_backward, finish_forward
from onmt_entmax.engines.cpu.compiled.blocks import Blocks, join, room, to_columns, to_rows, transposed
from onmt_entmax.engines.cpu.compiled.cells import cell_backward, cell_forward
from onmt_entmax.engines.cpu.compiled.threads import threads_for

__all__ = [
    "NONE",
    "NO_MASK",
    "Blocks",
    "attend_backward",
    "attend_forward",
    "cell_backward",
    "cell_forward",
    "finish_backward",
    "finish_forward",
    "join",
    "room",
    "threads_for",
    "to_columns",
    "to_rows",
    "transposed",
]
