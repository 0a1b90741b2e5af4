"""How near forwards come to what the memory allows: bytes that a pass must read, over the bandwidth, over its time.

Knows forwards and bytes; knows nothing about drafting or prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any, cast

from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel

from foreword.bench.batches import BATCHES, Beside, curve
from foreword.bench.clock import Memory, middle, seconds, turns
from foreword.bench.inflate import SHAPES
from foreword.bench.lineup import weights
from foreword.bench.stats import Interval
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Mode, Model, Read
from foreword.model.cost import measured
from foreword.model.model import device_named
from foreword.model.names import head_dim, kv_heads

FAMILY = "family"
"""The name of the target as it is, beside those of foreword.bench.inflate.SHAPES."""
DEFAULT = (FAMILY, "llama-110m", "llama-350m", "llama-1b")
NODES = (1, 2, 4, 8, 12, 16, 32, 64)
"""Tokens that a pass checks; 1 is plain decoding."""
SECONDS, QUICK_SECONDS = 20.0, 3.0
"""Time for the forwards of a shape."""
WARMING = 0.01
"""Seconds of forwards before those that count: after a reading of memory a cache does not take all in at once."""
SEQUENCE = 0
CHUNK = 512
"""Tokens of the context that are read at a time, as where requests are served."""


@dataclass(frozen=True)
class Asked:
    """What to measure."""

    shapes: tuple[str, ...] = DEFAULT
    context: int = 200
    """Tokens before the ones that are checked."""
    quick: bool = False
    target: str | None = None
    """Folder or hub id; None = the family that ships."""
    dtype: str = "auto"
    device: str = "cpu"
    batches: tuple[int, ...] | None = None
    """Texts that are read together, one token each; None = 1 to 64 on an accelerator, nothing on a CPU."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Forwards over `nodes` tokens."""

    nodes: int
    ms: Interval
    """Median, and its 95 % interval by the bootstrap."""
    share_of_floor: float
    """The time that reading the bytes takes at the measured bandwidth, over the time of the forward."""
    cost_over_one: float
    """Median of the ratios to the forward over one token of the same turn: a machine drifts."""
    predicted_ms: float
    """What a table of costs says that was measured just before."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One model beside the limit of the machine."""

    shape: str
    way: str
    """How the model is driven."""
    context: int
    weights: int
    """Bytes of the weights that a pass reads."""
    keys: int
    """Bytes of the keys and values that a pass reads after `context` tokens."""
    bandwidth: float
    """Bytes per second; the best of the turns, which the forwards shared."""
    rows: tuple[Pass, ...]
    batches: tuple[Beside, ...] = ()
    device: str = "cpu"

    @property
    def bytes(self) -> int:
        """What a pass reads."""
        return self.weights + self.keys

    @property
    def floor(self) -> float:
        """Seconds that a pass takes at least, unless its weights fit into a cache."""
        return self.bytes / self.bandwidth

    @property
    def off(self) -> float:
        """The largest deviation of a predicted time from the measured one, as a share of it."""
        return max(abs(row.predicted_ms / row.ms.mid - 1) for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and strings."""
        return {
            "shape": self.shape,
            "way": self.way,
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


def limits(asked: Asked, progress: Callable[[str], None] = lambda _: None) -> list[Limit]:
    """Measure every shape that is asked for, one after the other; raises InvalidRequest or ModelError before any."""
    unknown = [shape for shape in asked.shapes if shape != FAMILY and shape not in SHAPES]
    if unknown:
        raise InvalidRequest(f"there is no shape {unknown[0]!r}; choose from {', '.join((FAMILY, *SHAPES))}")
    if asked.context < 1:
        raise InvalidRequest(f"context must be at least 1, got {asked.context}")
    device, spend, found = device_named(asked.device), QUICK_SECONDS if asked.quick else SECONDS, []
    batches = (BATCHES if device.type != "cpu" else ()) if asked.batches is None else asked.batches
    dtype = "bfloat16" if asked.dtype == "auto" and device.type != "cpu" else asked.dtype
    for shape in asked.shapes:
        progress(f"building {shape}")
        source = weights(asked.target, None, dtype, None if shape == FAMILY else shape)
        hf = source.load(device, asked.context + max(NODES))
        sizes = _weight_bytes(hf), _key_bytes(hf) * asked.context
        model = Model(hf, shape)
        progress(f"measuring {shape}, which is driven the {model.capability.way} way")
        one = limit(model, sizes, asked.context, spend)
        beside = curve(model, sizes, asked.context, batches, spend) if batches else ()
        found.append(replace(one, batches=beside, device=str(device)))
        del hf, model  # before the next one is built
    return found


def limit(model: Model, sizes: tuple[int, int], context: int, spend: float) -> Limit:
    """Forwards over 1 to 64 tokens after `context`, and readings of memory between them, turn by turn.

    That takes `spend` seconds. `sizes` are the bytes of weights and of keys that a pass reads. Raises ModelError for a
    model that cannot check guesses, or one whose context is too short.
    """
    if model.mode not in (Mode.TREE, Mode.CHAIN):
        raise ModelError(f"{model.name} cannot go back to an earlier text, so its forwards cannot be repeated")
    if context + max(NODES) > model.context:
        raise ModelError(f"{model.name} reads {model.context} tokens; lower the context to leave room for {max(NODES)}")
    ids = [token % model.vocab for token in range(7, 7 + context + max(NODES))]
    cost = measured(model)  # now, for a table that is kept may be from an hour with another memory
    predicted = {nodes: cost(nodes - 1, 1, context) for nodes in NODES}
    memory = Memory(model.device)
    times: dict[int, list[float]] = {nodes: [] for nodes in NODES}
    readings = []
    model.open(SEQUENCE, len(ids))
    try:
        for start in range(0, context, CHUNK):
            model.read([Read(SEQUENCE, start, ids[start : min(start + CHUNK, context)], keep=0)])
        _turn(model, ids, context)  # one that finds everything cold, and is not counted
        for _ in turns(spend):
            readings += [memory() for _ in range(2)]
            for nodes, spent in _turn(model, ids, context).items():
                times[nodes].append(spent)
    finally:
        model.close(SEQUENCE)
    bandwidth = max(readings)
    floor = sum(sizes) / bandwidth
    rows = tuple(
        Pass(
            nodes,
            middle([1e3 * spent for spent in times[nodes]]),
            floor / median(times[nodes]),
            median(spent / one for spent, one in zip(times[nodes], times[1], strict=True)),
            1e3 * predicted[nodes],
        )
        for nodes in NODES
    )
    return Limit(model.name, model.capability.way, context, *sizes, bandwidth, rows)


def table(found: List[Limit]) -> Table:
    """For the terminal."""
    made = Table(
        title="forwards beside the limit of the memory",
        caption="\n".join(_caption(one) for one in found),
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    made.add_column("model", no_wrap=True)
    for head in ("nodes", "ms", "95 %", "of the floor", "of one", "predicted"):
        made.add_column(head, justify="right")
    for one in found:
        for row in one.rows:
            made.add_row(
                one.shape if row is one.rows[0] else "",
                str(row.nodes),
                f"{row.ms.mid:.2f}",
                f"{row.ms.low:.2f}–{row.ms.high:.2f}",
                f"{row.share_of_floor:.0%}",
                f"{row.cost_over_one:.2f}×",
                f"{row.predicted_ms:.2f}",
            )
        for beside in one.batches:
            share = f"{beside.share_of_floor:.0%}"
            between = f"{beside.ms.low:.2f}–{beside.ms.high:.2f}"
            made.add_row(
                "", f"1 of {beside.batch}", f"{beside.ms.mid:.2f}", between, share, f"{beside.cost_over_one:.2f}×"
            )
        made.add_section()
    return made


def _turn(model: Model, ids: list[int], context: int) -> dict[int, float]:
    """Seconds of one forward over each number of tokens; weights that fit into a cache are in it again."""
    one, until = [Read(SEQUENCE, context, ids[context : context + 1])], perf_counter() + WARMING
    model.read(one)
    while perf_counter() < until:
        model.read(one)
    return {
        nodes: seconds(model, [Read(SEQUENCE, context, ids[context : context + nodes], keep=nodes)]) for nodes in NODES
    }


def _weight_bytes(hf: PreTrainedModel) -> int:
    """All weights but an embedding that is not the head as well: of that a pass reads a row for each token."""
    embedding, head = hf.get_input_embeddings(), hf.get_output_embeddings()
    looked_up = 0 if head is None or head.weight is embedding.weight else cast(Tensor, embedding.weight).nbytes
    return sum(parameter.nbytes for parameter in hf.parameters()) - looked_up


def _key_bytes(hf: PreTrainedModel) -> int:
    """Bytes of the keys and values of one token."""
    config = hf.config.get_text_config()
    heads, dim = kv_heads(config), head_dim(config)
    return 2 * config.num_hidden_layers * heads * dim * hf.dtype.itemsize


def _caption(one: Limit) -> str:
    return (
        f"{one.shape} ({one.way}): {one.weights / 1e6:,.1f} MB of weights, {one.keys / 1e6:,.1f} MB of keys and values "
        f"({one.context} tokens); at {one.bandwidth / 1e9:.1f} GB/s the floor is {1e3 * one.floor:.2f} ms; "
        f"predictions are off by at most {one.off:.0%}"
    )
