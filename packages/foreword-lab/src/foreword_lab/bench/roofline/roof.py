"""The least time of a forward: what it must read and multiply, and how fast the machine
does both.

S. Williams, A. Waterman and D. Patterson, Roofline, Communications of the ACM 52
(2009), for each form of weights.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from time import perf_counter
from typing import Any

from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model import Model, architectures
from foreword.model.architectures import head_dim
from foreword.model.executors.native.backend import NativeBackend
from foreword.model.executors.native.layout import matrices_of
from foreword.model.layers import layers_of
from foreword.native import forward
from foreword.native.openmp import threads

WHOLE, BYTES, SMALL, LEVELS = range(4)
"""Forms of weights: bfloat16; 8 bits, beside rows of 15 bits; in groups, with levels in
a small range, or with any.
"""
NAMES = ("bfloat16", "8 bits", "small levels", "levels")
"""What a form is called in a report."""
TURNS = 2_000_000
"""Loops of one measurement, which take a few milliseconds."""
REPEATS = 4
"""Measurements. The fastest counts: another program may stop a thread."""
SCALE = 4
"""Bytes of the scale of an output in 8 bits."""
SMALL_RANGE = 64
"""Largest difference of two levels that AVX2 adds in 16 bits (products/groups.h)."""
UNGROUPED = 16
"""Bits in the header of a matrix without groups: bfloat16."""
HEAD = "head"


@dataclass(frozen=True, slots=True)
class Work:
    """The matrices of one form, in the layers or in the LM head."""

    form: int
    bytes: int
    products: int
    """Multiply-adds for each row."""
    head: bool = False


@dataclass(frozen=True, slots=True)
class Roof:
    """What a forward must do, and the speed of the machine."""

    weights: int
    """Bytes of all weights."""
    keys: int
    """Bytes of the keys and values of one token."""
    works: tuple[Work, ...] = ()
    """Empty where the instructions of the backend are unknown: bytes decide alone."""
    attention: int = 0
    """Multiply-adds for each row and token before it."""
    bandwidth: float = 1.0
    """Bytes a second."""
    peaks: Mapping[int, float] = field(default_factory=dict)
    """Form -> multiply-adds a second."""

    def seconds(self, rows: int, context: int, kept: int | None = None) -> float:
        """Return the least seconds of a forward over `rows` tokens after `context`.

        `kept`: rows whose logits are computed; None = all.
        """
        keys = self.keys * context / self.bandwidth
        if not self.works:
            return self.weights / self.bandwidth + keys
        kept = rows if kept is None else kept
        total = 0.0
        for work in self.works:
            count = kept if work.head else rows
            if count:
                products = count * work.products / self.peaks[work.form]
                total += max(work.bytes / self.bandwidth, products)
        # each row reads the tokens before it and half of the others
        seen = rows * (context + (rows - 1) / 2)
        return total + max(keys, seen * self.attention / self.peaks[WHOLE])

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers."""
        return {
            "bandwidth_gb_s": self.bandwidth / 1e9,
            "peaks_gmac_s": {NAMES[form]: p / 1e9 for form, p in self.peaks.items()},
            "works": [
                {
                    "form": NAMES[work.form],
                    "bytes": work.bytes,
                    "products_per_row": work.products,
                    "head": work.head,
                }
                for work in self.works
            ],
        }


def shapes(hf: PreTrainedModel) -> list[dict[str, tuple[int, int]]]:
    """Return outputs and inputs of the matrices of each layer by their names in C, last
    of the LM head; none if a layer has experts, which rows share.

    Ask before a backend takes the weights.
    """
    try:
        layers = layers_of(hf)
        matrices = [
            {name: _joined(parts) for name, parts in architectures.linears(one).items()}
            for one in layers
            if not architectures.routed(one)
        ]
        whole = len(matrices) == len(layers)
        head = {HEAD: _joined((architectures.lm_head(hf),))}
    except (AttributeError, ModelError, StopIteration):
        return []  # not one of the layouts that the native backend has
    return [*matrices, head] if whole else []


def works(model: Model, sizes: list[dict[str, tuple[int, int]]]) -> tuple[Work, ...]:
    """Return what a forward of the native backend multiplies; nothing for others."""
    backend = model.backend
    if not isinstance(backend, NativeBackend) or not sizes:
        return ()
    described = backend.model
    totals: dict[tuple[int, bool], tuple[int, int]] = {}
    for number, named in enumerate(sizes[:-1]):
        layer = described.layer[number]
        for name in matrices_of(layer):
            _add(totals, getattr(layer, name), described.coding, named[name])
    head = described.head or described.table
    coding = described.coding if described.head else forward.WHOLE
    _add(totals, head, coding, sizes[-1][HEAD], head=True)
    return tuple(
        Work(form, size, products, head)
        for (form, head), (size, products) in sorted(totals.items())
    )


def attention(hf: PreTrainedModel) -> int:
    """Return the multiply-adds of attention for each row and token before it."""
    config = hf.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 0)
    return 2 * config.num_hidden_layers * heads * head_dim(config)


def peaks(works: tuple[Work, ...]) -> dict[int, float]:
    """Measure the instructions of these forms, and of attention."""
    forms = {work.form for work in works} | ({WHOLE} if works else set())
    return {form: peak(form) for form in sorted(forms)}


def _joined(parts: tuple[Any, ...]) -> tuple[int, int]:
    each = [architectures.shape(part) for part in parts]
    return sum(outputs for outputs, _ in each), each[0][1]


def _add(
    totals: dict[tuple[int, bool], tuple[int, int]],
    address: int,
    coding: int,
    shape: tuple[int, int],
    *,
    head: bool = False,
) -> None:
    form, size = _form(address, coding, shape)
    bytes_before, products_before = totals.get((form, head), (0, 0))
    totals[form, head] = bytes_before + size, products_before + prod(shape)


def _form(address: int, coding: int, shape: tuple[int, int]) -> tuple[int, int]:
    """Return the form of a matrix and its bytes."""
    outputs, depth = shape
    if coding == forward.BYTES:
        return BYTES, outputs * (depth + SCALE)
    if coding == forward.GROUPS:
        header = forward.Grouped.from_address(address)
        if header.bits < UNGROUPED:
            small = header.most - header.least <= SMALL_RANGE
            return SMALL if small else LEVELS, header.matrix
    return WHOLE, 2 * outputs * depth


def peak(form: int) -> float:
    """Return the multiply-adds a second of the instructions that products of a form
    use, by all threads together (csrc/products/peaks.c).

    Raises ModelError without a compiler.
    """
    library = forward.needed()

    def alone(_: int) -> int:
        return library.foreword_peak(form, TURNS)

    speeds = []
    with ThreadPoolExecutor(threads()) as pool:
        for _ in range(REPEATS):
            before = perf_counter()
            done = sum(pool.map(alone, range(threads())))
            speeds.append(done / (perf_counter() - before))
    return max(speeds)
