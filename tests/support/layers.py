"""One attention layer with a full pool, read plainly and by the kernel."""

import torch

from foreword.model.executors.cuda import launch
from foreword.model.executors.cuda.launch import Scoring, tiled
from foreword.model.executors.cuda.table import columns, row_table
from foreword.model.executors.torch.attention import attend as defined
from foreword.model.executors.torch.kv_pool import KVPool
from foreword.model.executors.torch.plan import Plan
from foreword.model.kv.prefixes import PAGE
from foreword.model.kv.reads import Read, Span

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Layer:
    """One attention layer, its pool full of keys, and queries for what is read."""

    def __init__(
        self,
        reads: list[Read],
        heads=(4, 2),
        dims=(16, 16),
        dtype=torch.float32,
        seed=0,
    ) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.pool, self.spans, start = KVPool(adjacent=True), [], 0
        scratch = self.pool.reserve()
        for name, read in enumerate(reads):
            self.pool.open(name, read.start + len(read.tokens))
            stop = start + len(read.tokens)
            self.spans.append(Span(start, stop, self.pool[name], read))
            start = stop
        self.count, self.unread, self.heads = start, scratch * PAGE, heads

        def drawn(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=rng).to(DEVICE, dtype)

        self.keys = drawn(self.pool.rows, heads[1], dims[0])
        self.values = drawn(self.pool.rows, heads[1], dims[1])
        self.query = drawn(start, heads[0], dims[0])
        self.pool._layers[0] = self.keys, self.values

    def plainly(self, scoring: Scoring) -> torch.Tensor:
        """By the definition; what it writes is what lies there."""
        rows = torch.cat(
            [
                s.table.start + s.read.start + torch.arange(s.stop - s.start)
                for s in self.spans
            ]
        ).to(DEVICE)
        module = torch.nn.Module()
        module.layer_idx = 0
        packed = [
            part.transpose(0, 1)[None]
            for part in (self.query, self.keys[rows], self.values[rows])
        ]
        found, _ = defined(
            module,
            *packed,
            None,
            scaling=scoring.scale,
            plan=Plan(self.pool, tuple(self.spans), rows),
            sliding_window=scoring.window,
            softcap=scoring.softcap,
            s_aux=scoring.sinks,
        )
        return found[0]

    def by_kernel(
        self, scoring: Scoring, rows: int | None = None, splits: int = 2
    ) -> torch.Tensor:
        """In a sheet of so many rows."""
        rows = self.count if rows is None else rows
        words = columns([scoring.window])
        table = torch.from_numpy(
            row_table(self.spans, rows, tiled(*self.heads), self.unread, words)
        ).to(DEVICE)
        query = torch.cat(
            [self.query, self.query.new_zeros(rows - self.count, *self.query.shape[1:])]
        )
        column = words.get(scoring.window, words[None])
        return launch.attend(
            query,
            self.keys,
            self.values,
            table,
            scoring,
            (column, splits, tiled(*self.heads)),
        )


def keys_of(span: Span, window: int | None) -> list[list[int]]:
    """Return, by row of a span, the rows of the sequence whose keys it attends to."""
    keys: dict[int, list[int]] = {}
    for branch in span.branches():
        count = len(branch.rows)
        mask = span.visible(branch.position, count, window, torch.device("cpu"))
        stored = [*range(branch.root), *branch.path]
        for row, visible in zip(branch.rows, mask, strict=True):
            assert row not in keys
            keys[row] = [stored[key] for key in visible.nonzero().flatten().tolist()]
    return [keys[row] for row in range(span.stop - span.start)]
