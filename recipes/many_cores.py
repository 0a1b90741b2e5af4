"""Estimate a forward at 2 to 192 cores from kernels that were measured on two, and print
the tables of docs/notes/measured/many-cores.md:

    python recipes/many_cores.py
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import ceil

CORES = (2, 8, 16, 64, 96, 128, 192)
PANEL, CHUNKS = 32, 4
"""Outputs of a panel and chunks of a thread (csrc/products/product.h, csrc/threads.h)."""
MEASURED_BANDWIDTH = 34.8
"""GB/s of the two cores on which kernels were measured."""
CORE = {1: 28.4, 8: 11.7}
"""GB/s of weights that a core multiplies from memory, by rows: Q4_K, depth 1,536."""
CACHED = {1: 51.9, 8: 13.1}
"""The same from its caches."""
CACHE = 4 * 2**20
"""Bytes of L3 cache for each core: 32 MiB for eight."""
NORM, QUANTIZE, SCAN = 0.13, 0.38, 5.5
"""Nanoseconds: norm and quantization of a number of a row; a look at a thread's share.
"""
SOCKET, SOCKET_BANDWIDTH, LINK = 96, 350.0, 192.0
"""Cores and GB/s of a socket (STREAM on two of them: 650 to 780), and from one to the
other (three xGMI links, in theory).
"""
NEAR, ACROSS, FAR = 23.0, 107.0, 197.0
"""Nanoseconds of a cache line between cores of an L3 cache, of a socket, of two."""
L3 = 8
"""Cores that share an L3 cache."""
SHARE = 4 * 2**20
"""Bytes of bfloat16 weights for each thread (model/executors/native/executor.py)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model, and bytes of a weight in each of its matrices."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    qkv: int
    vocab: int
    bytes: tuple[float, float, float]
    """In most matrices, in `down`, and in the head."""

    def products(self) -> list[tuple[int, int, float, int]]:
        """Return outputs, depth, bytes of a weight and number of each product."""
        most, down, head = self.bytes
        wide, layers = self.intermediate, self.layers
        return [
            (self.qkv, self.hidden, most, layers),
            (self.hidden, self.hidden, most, layers),
            (2 * wide, self.hidden, most, layers),
            (self.hidden, wide, down, layers),
            (self.vocab, self.hidden, head, 1),
        ]

    def weights(self) -> int:
        """Return the number of weights that a forward reads."""
        return sum(out * deep * times for out, deep, _, times in self.products())

    def size(self) -> float:
        """Return the bytes of these."""
        return sum(out * deep * each * n for out, deep, each, n in self.products())


QWEN = Shape("Qwen2.5 1.5B", 28, 1536, 8960, 2048, 151936, (0.594, 0.711, 0.828))
SMALL = Shape("SmolLM2 135M", 30, 576, 1536, 960, 49152, (0.625, 0.625, 0.625))
PHASES = 10
"""Phases of a layer, four of them products; a forward has three more."""


def sockets(threads: int) -> int:
    """Return the sockets that so many threads fill."""
    return ceil(threads / SOCKET)


def bandwidth(threads: int, pages: str) -> float:
    """Return the GB/s of all memory, by where pages lie: on `one` node, `spread` at
    random, or `local`.
    """
    if threads == 2:
        return MEASURED_BANDWIDTH
    if sockets(threads) == 1:
        return SOCKET_BANDWIDTH
    return {
        "one": min(SOCKET_BANDWIDTH, 2 * LINK),
        "spread": min(2 * SOCKET_BANDWIDTH, 4 * LINK),
        "local": 2 * SOCKET_BANDWIDTH,
    }[pages]


def products(shape: Shape, rows: int, threads: int, pages: str) -> tuple[float, float]:
    """Return the milliseconds of all products, as chunks let them be, and as they would
    be if they were divided evenly.
    """
    total, even = 0.0, 0.0
    cached = shape.size() <= CACHE * threads
    core = (CACHED if cached else CORE)[rows]
    memory = float("inf") if cached else bandwidth(threads, pages)
    for outputs, depth, each, times in shape.products():
        panels = ceil(outputs / PANEL)
        size = max(ceil(panels / (CHUNKS * threads)), 2)
        rounds, rest = divmod(ceil(panels / size), threads)
        chunk = size * PANEL * depth * each / 1e6
        total += times * rounds * chunk / min(core, memory / threads)
        if rest:
            total += times * chunk / min(core, memory / rest)
        size_of_all = outputs * depth * each / 1e6
        even += times * size_of_all / min(core * threads, memory)
    return total, even


def rows_alone(shape: Shape, rows: int) -> float:
    """Return the milliseconds in which one thread norms and quantizes, or few do."""
    normed = min(rows, 4) * (2 * NORM + 2 * QUANTIZE) * shape.hidden
    quantized = min(rows, 2) * QUANTIZE * (shape.hidden + shape.intermediate)
    return shape.layers * (normed + quantized) / 1e6


def meet(threads: int, group: int) -> float:
    """Return the nanoseconds until all have met if all come at once, in groups of so
    many: each waits for the line, then the last of each group do, then all learn it.
    """
    if threads <= L3:
        return threads * NEAR
    far = FAR if sockets(threads) > 1 else ACROSS
    near = min(L3, group) * NEAR
    within = near + max(0, min(group, SOCKET, threads) - L3) * ACROSS
    within += max(0, group - SOCKET) * FAR
    return within + (ceil(threads / group) - 1) * far + far


def barriers(shape: Shape, threads: int, group: int) -> float:
    """Return the milliseconds of all phases' ends; only products have many chunks."""
    many = 4 * shape.layers + 1
    few = (PHASES - 4) * shape.layers + 2
    return (many * meet(threads, group) + few * 2 * meet(min(threads, L3), L3)) / 1e6


def row(shape: Shape, rows: int, cores: int) -> dict[str, float]:
    """Return the milliseconds of a forward and its parts, by the columns of a table."""
    threads = min(cores, 2 * shape.weights() // SHARE)
    local, even = products(shape, rows, threads, "local")
    alone = rows_alone(shape, rows)
    search = SCAN * threads * (PHASES * shape.layers + 3) / 1e6
    node = ceil(threads / sockets(threads))
    flat, by_node, by_cache = (
        barriers(shape, threads, group) for group in (threads, node, L3)
    )
    before = {
        pages: products(shape, rows, threads, pages)[0] + alone + search + flat
        for pages in ("one", "spread")
    }
    return {
        "products": even,
        "uneven": local - even,
        "rows": alone,
        "search": search,
        "flat": flat,
        "by node": by_node,
        "by L3": by_cache,
        "before, pages on one node": before["one"],
        "spread": before["spread"],
        "after": local + alone + search + by_node,
    }


def table(shape: Shape, rows: int) -> str:
    """Return a table of milliseconds by cores."""
    names = row(shape, rows, CORES[0])
    lines = [f"| cores | {' | '.join(names)} |", "|--:" * (1 + len(names)) + "|"]
    for cores in CORES:
        figures = row(shape, rows, cores).values()
        cells = " | ".join(f"{figure:.2f}" for figure in figures)
        lines.append(f"| {cores} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    for shape in (QWEN, SMALL):
        sys.stdout.write(f"{shape.name}\n\n{table(shape, 1)}\n\n")
