"""Forwards against the memory-bandwidth limit: bytes that a pass must read / bandwidth
/ measured time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias, cast

from torch import Tensor
from transformers import PreTrainedModel

from foreword.bench.inflate.model import SHAPES
from foreword.bench.lineup import weights
from foreword.bench.roofline.batches import BATCHES, BatchPass, curve
from foreword.bench.roofline.timing import Memory, middle, seconds, turns
from foreword.bench.stats import Interval
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Mode, Model, Read
from foreword.model.cost import measured
from foreword.model.kv.limit import key_bytes
from foreword.model.loading.options import device_named
from foreword.options import LoadingOptions
from foreword.tables import Column, Table, figure, name_column, share

FAMILY = "family"
"""Shape name of the target at its own size; the other shapes are in
foreword.bench.inflate.model.SHAPES.
"""
DEFAULT = (FAMILY, "llama-110m", "llama-350m", "llama-1b")
NODES = (1, 2, 4, 8, 12, 16, 32, 64)
"""Tokens scored in a pass; 1 is plain decoding."""
SECONDS, QUICK_SECONDS = 20.0, 3.0
"""Seconds of measurement per shape."""
WARMING = 0.01
"""Seconds of warm-up forwards in each turn: reading the memory buffer has evicted the
weights from the cache.
"""
SEQUENCE = 0
CHUNK = 512
"""Tokens of the context read per forward, as in serving."""


@dataclass(frozen=True, kw_only=True)
class LimitOptions(LoadingOptions):
    """Options of a measurement."""

    shapes: tuple[str, ...] = DEFAULT
    context: int = 200
    """Tokens before the scored ones."""
    quick: bool = False
    target: str | None = None
    """Folder or hub id; None = the bundled target."""
    device: str = "cpu"
    batches: tuple[int, ...] | None = None
    """Batch sizes, one token per sequence; None = 1 to 64 on an accelerator, none on a
    CPU.
    """


@dataclass(frozen=True, slots=True)
class Pass:
    """Forwards over `nodes` tokens."""

    nodes: int
    ms: Interval
    """Median, and its 95 % interval by the bootstrap."""
    share_of_floor: float
    """Time of reading the bytes at the measured bandwidth, divided by the median time
    of the forward.
    """
    cost_over_one: float
    """Median of the ratios to the forward over one token in the same turn, since a
    machine drifts.
    """
    predicted_ms: float
    """Prediction of a cost table measured just before."""

    @property
    def shown(self) -> str:
        """What the forward scores, as the table calls it."""
        return str(self.nodes)


@dataclass(frozen=True, slots=True)
class Limit:
    """Forwards of one model and the limit of the machine."""

    shape: str
    backend: str
    """Backend of the model."""
    context: int
    weights: int
    """Bytes of the weights that a pass reads."""
    keys: int
    """Bytes of the keys and values that a pass reads after `context` tokens."""
    bandwidth: float
    """Bytes per second; the best of the readings, which alternate with the forwards."""
    rows: tuple[Pass, ...]
    batches: tuple[BatchPass, ...] = ()
    device: str = "cpu"

    @property
    def bytes(self) -> int:
        """Bytes that a pass reads."""
        return self.weights + self.keys

    @property
    def floor(self) -> float:
        """Minimum seconds of a pass, unless its weights fit into a cache."""
        return self.bytes / self.bandwidth

    @property
    def off(self) -> float:
        """Largest relative deviation of a predicted time from the measured one."""
        return max(abs(row.predicted_ms / row.ms.mid - 1) for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers and strings."""
        return {
            "shape": self.shape,
            "backend": self.backend,
            "context": self.context,
            "bandwidth_gb_s": self.bandwidth / 1e9,
            "bytes": self.bytes,
            "bytes_weights": self.weights,
            "bytes_keys": self.keys,
            "floor_ms": 1e3 * self.floor,
            "largest_prediction_error": self.off,
            "rows": [
                {
                    "nodes": row.nodes,
                    "ms": row.ms.mid,
                    "ms_interval": [row.ms.low, row.ms.high],
                    "share_of_floor": row.share_of_floor,
                    "cost_over_one": row.cost_over_one,
                    "predicted_ms": row.predicted_ms,
                }
                for row in self.rows
            ],
            "device": self.device,
            "batches": [one.as_json() for one in self.batches],
        }


_Line: TypeAlias = tuple[Limit, Pass | BatchPass]


def limits(
    options: LimitOptions, progress: Callable[[str], None] = lambda _: None
) -> list[Limit]:
    """Measure every requested shape in turn; raises InvalidRequest or ModelError before
    any.
    """
    unknown = [
        shape for shape in options.shapes if shape != FAMILY and shape not in SHAPES
    ]
    if unknown:
        raise InvalidRequest(
            f"cannot measure shape {unknown[0]!r}: no such shape. Choose from "
            f"{', '.join((FAMILY, *SHAPES))}"
        )
    if options.context < 1:
        raise InvalidRequest(
            "cannot measure the limit: 'context' must be at least 1, got "
            f"{options.context}"
        )
    accelerated = device_named(options.device).type != "cpu"
    spend = QUICK_SECONDS if options.quick else SECONDS
    results = []
    batches = (
        (BATCHES if accelerated else ()) if options.batches is None else options.batches
    )
    dtype = str(options.dtype).removeprefix("torch.")
    for shape in options.shapes:
        progress(f"building {shape}")
        larger = None if shape == FAMILY else shape
        source = weights(
            options.target,
            None,
            dtype,
            larger,
            trusted=options.trust_remote_code,
            device=options.device,
        )
        hf = source.load(options.context + max(NODES))
        sizes = _weight_bytes(hf), key_bytes(hf) * options.context
        model = Model(hf, shape)
        progress(f"measuring {shape} on backend {model.capability.backend}")
        one = limit(model, sizes, options.context, spend)
        beside = curve(model, sizes, options.context, batches, spend) if batches else ()
        results.append(replace(one, batches=beside, device=source.device))
        del hf, model  # before the next one is built
    return results


def limit(model: Model, sizes: tuple[int, int], context: int, spend: float) -> Limit:
    """Measure forwards over 1 to 64 tokens after `context`, interleaved with readings
    of memory, for `spend` seconds.

    `sizes` are the bytes of weights and of keys that a pass reads. Raises ModelError
    for a model that cannot score draft tokens, or one whose context is too short.
    """
    _check(model, context)
    ids = [token % model.vocab for token in range(7, 7 + context + max(NODES))]
    # measured now: a cached table may be from a time of another bandwidth
    cost = measured(model)
    predicted = {nodes: cost(nodes - 1, 1, context) for nodes in NODES}
    model.open(SEQUENCE, len(ids))
    try:
        _read_context(model, ids[:context])
        times, bandwidth = _interleaved(model, ids, context, spend)
    finally:
        model.close(SEQUENCE)
    floor = sum(sizes) / bandwidth
    rows = tuple(
        Pass(
            nodes,
            middle([1e3 * spent for spent in own]),
            floor / median(own),
            median(spent / one for spent, one in zip(own, times[1], strict=True)),
            1e3 * predicted[nodes],
        )
        for nodes, own in times.items()
    )
    return Limit(model.name, model.capability.backend, context, *sizes, bandwidth, rows)


def _check(model: Model, context: int) -> None:
    if model.mode not in (Mode.TREE, Mode.CHAIN):
        raise ModelError(
            f"cannot measure {model.name}: it cannot go back to an earlier position to "
            "repeat a forward"
        )
    if context + max(NODES) > model.context:
        raise ModelError(
            f"cannot measure {model.name}: it has a context of {model.context}. "
            f"Lower 'context' to leave room for {max(NODES)}"
        )


def _read_context(model: Model, ids: list[int]) -> None:
    for start in range(0, len(ids), CHUNK):
        model.read([Read(SEQUENCE, start, ids[start : start + CHUNK], keep=0)])


def _interleaved(
    model: Model, ids: list[int], context: int, spend: float
) -> tuple[dict[int, list[float]], float]:
    """Return the seconds of forwards by their tokens, one for each turn, and the best
    bandwidth of the readings between them.
    """
    memory = Memory(model.device)
    times: dict[int, list[float]] = {nodes: [] for nodes in NODES}
    readings = []
    _turn(model, ids, context)  # warm-up, not counted
    for _ in turns(spend):
        readings += [memory() for _ in range(2)]
        for nodes, spent in _turn(model, ids, context).items():
            times[nodes].append(spent)
    return times, max(readings)


def table(results: Sequence[Limit]) -> Table[_Line]:
    """Return a table for the terminal."""
    return Table(
        [(one, row) for one in results for row in (*one.rows, *one.batches)],
        (
            name_column(
                "model", lambda line: line[0].shape if _is_first(*line) else ""
            ),
            Column("nodes", lambda line: line[1].shown),
            Column("ms", lambda line: f"{line[1].ms.mid:.2f}"),
            Column("95 %", lambda line: line[1].ms.ends),
            Column("of the floor", lambda line: share(line[1].share_of_floor)),
            Column("of one", lambda line: f"{line[1].cost_over_one:.2f}×"),
            Column("predicted", lambda line: figure(_predicted(line[1]))),
        ),
        title="forwards against the memory-bandwidth limit",
        caption="\n".join(_caption(one) for one in results),
        section=lambda line: id(line[0]),
    )


def _is_first(one: Limit, row: Pass | BatchPass) -> bool:
    return row is one.rows[0]


def _predicted(row: Pass | BatchPass) -> float | None:
    return row.predicted_ms if isinstance(row, Pass) else None


def _turn(model: Model, ids: list[int], context: int) -> dict[int, float]:
    """Return the seconds of one forward over each number of tokens, after warming the
    cache.
    """
    one = [Read(SEQUENCE, context, ids[context : context + 1])]
    until = perf_counter() + WARMING
    # each is waited for: a GPU would otherwise still run them when the timer starts
    seconds(model, one)
    while perf_counter() < until:
        seconds(model, one)
    return {
        nodes: seconds(
            model, [Read(SEQUENCE, context, ids[context : context + nodes], keep=nodes)]
        )
        for nodes in NODES
    }


def _weight_bytes(hf: PreTrainedModel) -> int:
    """Return the bytes of all weights except an untied embedding: a pass reads one row
    of it per token.
    """
    embedding, head = hf.get_input_embeddings(), hf.get_output_embeddings()
    looked_up = (
        0
        if head is None or head.weight is embedding.weight
        else cast(Tensor, embedding.weight).nbytes
    )
    return sum(parameter.nbytes for parameter in hf.parameters()) - looked_up


def _caption(one: Limit) -> str:
    return (
        f"{one.shape} ({one.backend}): {one.weights / 1e6:,.1f} MB of weights, "
        f"{one.keys / 1e6:,.1f} MB of keys and values ({one.context} tokens); "
        f"at {one.bandwidth / 1e9:.1f} GB/s the floor is {1e3 * one.floor:.2f} ms; "
        f"predictions are off by at most {one.off:.0%}"
    )
