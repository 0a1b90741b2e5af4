"""Forwards against what the machine allows: least time (roof.py) / measured time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias, cast

from torch import Tensor
from transformers import PreTrainedModel

from foreword.cli.common.tables import Column, Table, figure, name_column, share
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Mode, Model, Read
from foreword.model.cost_table import measured
from foreword.model.kv.limit import key_bytes
from foreword.model.loading.options import device_named
from foreword.options import LoadingOptions
from foreword_lab.bench.inflate.model import SHAPES
from foreword_lab.bench.lineup import Weights, weights
from foreword_lab.bench.roofline.passes import (
    BATCHES,
    CHUNK,
    LARGE,
    PROMPTS,
    SEQUENCE,
    SMALL,
    Pass,
    Times,
    batches,
    prompts,
    shape_price,
)
from foreword_lab.bench.roofline.roof import Roof, attention, peaks, shapes, works
from foreword_lab.bench.roofline.timing import Memory, seconds, turns

FAMILY = "family"
"""Shape name of the target at its own size; the other shapes are in
foreword_lab.bench.inflate.model.SHAPES.
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


@dataclass(frozen=True, kw_only=True)
class LimitOptions(LoadingOptions):
    """Options of a measurement."""

    shapes: tuple[str, ...] = DEFAULT
    contexts: tuple[int, ...] = (200,)
    """Tokens before the scored ones, one measurement for each."""
    prompts: tuple[int, ...] | None = None
    """Tokens of the prompts that are read, if the model's context is as long; None =
    128, 512 and, unless `quick`, 2,048.
    """
    weights: str | None = None
    """Form of the linear weights, as of `foreword.LLM(weights=)`."""
    quick: bool = False
    target: str | None = None
    """Folder or hub id; None = the bundled target."""
    device: str = "cpu"
    batches: tuple[int, ...] | None = None
    """Batch sizes, one token a sequence; None = 1 to 64, or none on a CPU."""

    @property
    def spend(self) -> float:
        """Seconds of forwards after each context."""
        return QUICK_SECONDS if self.quick else SECONDS

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of the prompts."""
        usual = PROMPTS[:-1] if self.quick else PROMPTS
        return usual if self.prompts is None else self.prompts


@dataclass(frozen=True, slots=True)
class Limit:
    """Forwards of one model and the limit of the machine."""

    shape: str
    backend: str
    """Backend of the model."""
    context: int
    roof: Roof
    """Bandwidth and peaks are the best of the readings between the forwards."""
    rows: tuple[Pass, ...]
    batches: tuple[Pass, ...] = ()
    prompts: tuple[Pass, ...] = ()
    device: str = "cpu"
    price: tuple[float, float] | None = None
    """Result of `shape_price`."""

    @property
    def keys(self) -> int:
        """Bytes of the keys and values that a pass reads after `context` tokens."""
        return self.roof.keys * self.context

    @property
    def bytes(self) -> int:
        """Bytes that a pass reads."""
        return self.roof.weights + self.keys

    @property
    def floor(self) -> float:
        """Minimum seconds of a pass over one token, unless its weights fit a cache."""
        return self.roof.seconds(1, self.context)

    @property
    def off(self) -> float:
        """Largest relative deviation of a predicted time from the measured one."""
        return max(
            abs(row.predicted_ms / row.ms.mid - 1)
            for row in self.rows
            if row.predicted_ms is not None
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers and strings."""
        return {
            "shape": self.shape,
            "backend": self.backend,
            "context": self.context,
            **self.roof.as_json(),
            "bytes": self.bytes,
            "bytes_weights": self.roof.weights,
            "bytes_keys": self.keys,
            "floor_ms": 1e3 * self.floor,
            "largest_prediction_error": self.off,
            "rows": [one.as_json() for one in self.rows],
            "device": self.device,
            "batches": [one.as_json() for one in self.batches],
            "prompts": [one.as_json() for one in self.prompts],
            "price_of_one_shape": self.price,
        }


def limits(
    options: LimitOptions, progress: Callable[[str], None] = lambda _: None
) -> list[Limit]:
    """Measure every requested shape; raises InvalidRequest or ModelError before any."""
    unknown = [
        shape for shape in options.shapes if shape != FAMILY and shape not in SHAPES
    ]
    if unknown:
        raise InvalidRequest(
            f"cannot measure shape {unknown[0]!r}: no such shape. Choose from "
            f"{', '.join((FAMILY, *SHAPES))}"
        )
    if min(options.contexts) < 1:
        raise InvalidRequest(
            "cannot measure the limit: 'context' must be at least 1, got "
            f"{min(options.contexts)}"
        )
    accelerated = device_named(options.device).type != "cpu"
    usual = BATCHES if accelerated else ()
    counts = usual if options.batches is None else options.batches
    results = []
    for shape in options.shapes:
        name = _model_name(options, shape)
        progress(f"building {name}")
        source = _source(options, shape)
        model, roof = _built(source, name, max(options.contexts), options.weights)
        for context in options.contexts:
            progress(
                f"measuring {model.name} after {context} tokens on backend "
                f"{model.capability.backend}"
            )
            result = limit(model, roof, context, options.spend)
            sizes = roof.weights, roof.keys * context
            by_batch = batches(model, sizes, context, counts, options.spend)
            results.append(replace(result, batches=by_batch, device=source.device))
        progress(f"reading prompts with {model.name}")
        first = len(results) - len(options.contexts)
        lengths = [size for size in options.lengths if size <= model.context]
        times = prompts(model, results[first].roof, lengths)
        price = shape_price(model, QUICK_SECONDS)
        results[first] = replace(results[first], prompts=times, price=price)
        del model  # before the next one is built
    return results


def _model_name(options: LimitOptions, shape: str) -> str:
    """Return what the measured model is called: its file or folder, or its shape."""
    if shape != FAMILY or options.target is None:
        return shape
    return Path(options.target).name.removesuffix(".gguf")


def _source(options: LimitOptions, shape: str) -> Weights:
    source = weights(
        options.target,
        None,
        str(options.dtype).removeprefix("torch."),
        None if shape == FAMILY else shape,
        trusted=options.trust_remote_code,
        device=options.device,
    )
    return replace(source, form=options.weights)


def _built(
    source: Weights, name: str, context: int, form: str | None
) -> tuple[Model, Roof]:
    """Return the model to measure, and what its forwards must do."""
    hf = source.load(context + max(NODES))
    sizes, keys = shapes(hf), key_bytes(hf)
    whole, each = _weight_bytes(hf), attention(hf)
    model = Model(hf, name if form is None else f"{name} in {form}")
    model.quantize(form)
    work = works(model, sizes)
    read = sum(one.bytes for one in work) or whole
    return model, Roof(read, keys, work, each)


def limit(model: Model, roof: Roof, context: int, spend: float) -> Limit:
    """Measure forwards over 1 to 64 tokens after `context`, interleaved with readings
    of memory and loops of products, for `spend` seconds.

    Raises ModelError for a model that cannot score draft tokens, or one whose context
    is too short.
    """
    _check(model, context)
    ids = [token % model.vocab for token in range(7, 7 + context + max(NODES))]
    # measured now: a cached table may be from a time of another bandwidth
    cost = measured(model.backend, model.vocab, model.context)
    predicted = {nodes: cost(nodes - 1, 1, context) for nodes in NODES}
    model.open(SEQUENCE, len(ids))
    try:
        _read_context(model, ids[:context])
        times, roof = _interleaved(model, roof, ids, context, spend)
    finally:
        model.close(SEQUENCE)
    rows = tuple(
        replace(
            Pass.of("nodes", nodes, times, roof.seconds(nodes, context)),
            predicted_ms=1e3 * predicted[nodes],
        )
        for nodes in NODES
    )
    return Limit(model.name, model.capability.backend, context, roof, rows)


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
    model: Model, roof: Roof, ids: list[int], context: int, spend: float
) -> tuple[Times, Roof]:
    """Return the seconds of forwards by their tokens, one for each turn, and the roof
    with the best of the readings between them.
    """
    memory = Memory(model.device)
    times: Times = {nodes: [] for nodes in NODES}
    bandwidth, best = 0.0, peaks(roof.works)
    _turn(model, ids, context)  # warm-up, not counted
    for _ in turns(spend):
        bandwidth = max(bandwidth, memory(), memory())
        now = peaks(roof.works)
        best = {form: max(best[form], now[form]) for form in now}
        for nodes, spent in _turn(model, ids, context).items():
            times[nodes].append(spent)
    return times, replace(roof, bandwidth=bandwidth, peaks=best)


def _turn(model: Model, ids: list[int], context: int) -> dict[int, float]:
    """Return the seconds of a forward by number of tokens, after warming the cache."""
    reads = [Read(SEQUENCE, context, ids[context : context + 1])]
    until = perf_counter() + WARMING
    # each is waited for: a GPU would otherwise still run them when the timer starts
    seconds(model, reads)
    while perf_counter() < until:
        seconds(model, reads)
    return {
        nodes: seconds(
            model, [Read(SEQUENCE, context, ids[context : context + nodes], keep=nodes)]
        )
        for nodes in NODES
    }


def _weight_bytes(hf: PreTrainedModel) -> int:
    """Return the bytes of all weights that a pass reads: no untied embedding."""
    embedding, head = hf.get_input_embeddings(), hf.get_output_embeddings()
    looked_up = (
        0
        if head is None or head.weight is embedding.weight
        else cast(Tensor, embedding.weight).nbytes
    )
    return sum(parameter.nbytes for parameter in hf.parameters()) - looked_up


_Line: TypeAlias = tuple[Limit, Pass]


def table(results: Sequence[Limit]) -> Table[_Line]:
    """Return a table for the terminal."""
    return Table(
        [
            (one, row)
            for one in results
            for row in (*one.rows, *one.batches, *one.prompts)
        ],
        (
            name_column("model", _name),
            Column("nodes", lambda line: line[1].shown),
            Column("ms", lambda line: f"{line[1].ms.mid:.2f}"),
            Column("95 %", lambda line: line[1].ms.ends),
            Column("of the floor", lambda line: share(line[1].share_of_floor)),
            Column("of one", lambda line: _over_one(line[1])),
            Column("predicted", lambda line: figure(line[1].predicted_ms)),
        ),
        title="forwards against what the machine allows",
        caption="\n".join(_caption(one) for one in results),
        section=lambda line: id(line[0]),
    )


def _name(line: _Line) -> str:
    """Return the name of the model, in its first row only."""
    result, row = line
    return result.shape if row is result.rows[0] else ""


def _over_one(row: Pass) -> str:
    """Return the time over that of one token."""
    return "–" if row.cost_over_one is None else f"{row.cost_over_one:.2f}×"


def _caption(result: Limit) -> str:
    weights, keys = result.roof.weights / 1e6, result.keys / 1e6
    bandwidth, floor = result.roof.bandwidth / 1e9, 1e3 * result.floor
    peaks = result.roof.as_json()["peaks_gmac_s"]
    parts = [
        f"{result.shape} ({result.backend}): {weights:,.1f} MB of weights, ",
        f"{keys:,.1f} MB of keys and values ({result.context} tokens)",
        f"; at {bandwidth:.1f} GB/s the floor is {floor:.2f} ms",
    ]
    if peaks:
        each = (f"{name} {size:,.0f}" for name, size in peaks.items())
        parts.append(f"; billions of multiply-adds a second: {', '.join(each)}")
    parts.append(f"; predictions are off by at most {result.off:.0%}")
    if result.price is not None:
        token, prompt = result.price
        parts.append(
            f"; in the one shape, a token takes {token:.2f} times a forward over "
            f"{SMALL} rows, and a prompt {prompt:.2f} times one over {LARGE}"
        )
    return "".join(parts)
