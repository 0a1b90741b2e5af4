"""Graph backend: a Hugging Face model on CUDA in forwards of one shape, which is
recorded once and replayed.

Every row uses the attention of launch.py, so that prompts and draft tokens get the same
arithmetic.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import ref

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from foreword.errors import ModelError, words
from foreword.model.executors.cuda.fused import fused_forwards
from foreword.model.executors.cuda.launch import (
    KEPT,
    MOST,
    PLACE,
    POSITION,
    SPLIT,
    TOKEN,
    Scoring,
    attend,
    library,
    tiled,
)
from foreword.model.executors.cuda.quantized import HoldsCodes
from foreword.model.executors.cuda.table import columns, row_table
from foreword.model.executors.torch.attention import attend as attend_spans
from foreword.model.executors.torch.backend import PoolBackend
from foreword.model.executors.torch.hooks import listening, replaced_forwards
from foreword.model.executors.torch.kv_pool import KVPool
from foreword.model.executors.torch.plan import Plan
from foreword.model.kv.prefixes import PAGE
from foreword.model.kv.reads import Read, Span

NAME = "foreword_graph"
CAPABILITY = (8, 0)
"""Lowest compute capability with bfloat16 products."""
BUCKETS = (64,)
"""Rows of a forward with padding, and of its logits.

A library chooses how it sums by the number of rows, so a text depends on no draft and
no batch where all forwards have one shape. 64 rows stand in one tile of a product.
"""

Output = tuple[Tensor, Tensor]
"""Logits and hidden states of the rows of a bucket."""
Runner = Callable[[Callable[[], Output]], Callable[[], Output]]
"""Takes work on the same memory every time; returns a callable that repeats it."""


def refused(model: PreTrainedModel) -> str | None:
    """Return why this backend cannot run the model; None if it can."""
    device = model.device
    if device.type != "cuda":
        return "it needs CUDA"
    if any(weight.device != device for weight in model.parameters()):
        return "its weights are on several devices"
    present = torch.cuda.get_device_capability(device)
    if present < CAPABILITY:
        return (
            f"compute capability {present[0]}.{present[1]} is below "
            f"{CAPABILITY[0]}.{CAPABILITY[1]}"
        )
    kernels = library()
    return kernels if isinstance(kernels, str) else None


@dataclass(frozen=True, slots=True)
class FixedPlan:
    """One forward, described by tensors at fixed addresses; passed through the model as
    the keyword `plan`.
    """

    pool: KVPool
    table: Int[Tensor, "rows width"]
    words: dict[int | None, int]
    """First column of the ancestor words in the row table, by window."""
    at: tuple[int, int]
    """Splits of keys, rows of a tile."""
    rows: Int[Tensor, "rows"]
    windows: dict[int, int | None]
    """Sliding window of each layer; see `Plan.windows`."""


def attend_in_place(
    module: nn.Module,
    query: Float[Tensor, "1 heads rows dim"],
    key: Float[Tensor, "1 kv_heads rows dim"],
    value: Float[Tensor, "1 kv_heads rows value_dim"],
    attention_mask: Tensor | None,
    *,
    plan: FixedPlan | Plan | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "1 rows heads value_dim"], None]:
    """Compute `attend` of executors/torch/attention.py for a forward of fixed shape;
    pass any other on to it.
    """
    if not isinstance(plan, FixedPlan):
        return attend_spans(
            module, query, key, value, attention_mask, plan=plan, **options
        )
    layer, window = int(module.layer_idx), options.get("sliding_window")  # type: ignore[arg-type]
    plan.windows[layer] = window
    keys, values = plan.pool.write(
        layer, key[0].transpose(0, 1), value[0].transpose(0, 1), plan.rows
    )
    scale, sinks = options.get("scaling"), options.get("s_aux")
    scoring = Scoring(
        query.shape[-1] ** -0.5 if scale is None else scale,
        window,
        options.get("softcap"),
        getattr(module, "sinks", None) if sinks is None else sinks,
    )
    words = plan.words[None if window is None or window >= MOST else window]
    return attend(
        query[0].transpose(0, 1), keys, values, plan.table, scoring, (words, *plan.at)
    )[None], None


AttentionInterface.register(NAME, attend_in_place)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that are fixed in a recording."""

    rows: int
    kept: int
    splits: int
    layers: tuple[int, ...]
    """Layers whose hidden states are captured."""


class CudaGraphBackend(HoldsCodes, PoolBackend):
    """A backend of forwards in few shapes; padding writes to a row never read."""

    probed = False

    def __init__(
        self,
        model: PreTrainedModel,
        runner: Runner | None = None,
        buckets: tuple[int, ...] = BUCKETS,
        *,
        kernel: bool = True,
    ) -> None:
        """`runner` records forwards, by default as CUDA graphs; `buckets` are the row
        counts.

        Without `kernel`, nothing is fused, and attention is `attend` of the pool, which
        cannot be recorded: `runner` must then run the work directly. Raises ModelError
        for a model whose shapes cannot be fixed.
        """
        super().__init__(model, adjacent=True)
        if self._rope is not None:
            raise ModelError("its rotary embedding depends on the sequence length")
        model.set_attn_implementation(NAME)
        config = model.config.get_text_config()
        heads = getattr(config, "num_attention_heads", 1)
        self._tile = tiled(heads, getattr(config, "num_key_value_heads", None) or heads)
        self._words = columns([getattr(config, "sliding_window", None)])
        self._runner = runner or Recorder()
        self._buckets = buckets
        self._kernel = kernel
        self._padding_row = self.pool.reserve() * PAGE
        self._tables: dict[int, Tensor] = {}
        self._recordings: dict[Shape, Callable[[], Output]] = {}
        self._recorded_for = 0
        """Rows of the pool at the recordings; the pool moves when it grows."""
        self._current: tuple[Span, ...] = ()

    @property
    def recorder(self) -> Runner | None:
        """What records a head beside this model; None without kernels."""
        return self._runner if self._kernel else None

    def with_buckets(self, buckets: tuple[int, ...]) -> "CudaGraphBackend":
        """Return a backend of the same model with other row counts, and own pages."""
        return CudaGraphBackend(self.model, self._runner, buckets, kernel=self._kernel)

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        with _memory_for(f"the keys and values of {capacity} more tokens"):
            return super().open(id, capacity, tokens, tenant, layers)

    def _forwards(self, reads: Sequence[Read]) -> Sequence[Sequence[Read]]:
        """Split reads, also within draft trees, into forwards of the largest bucket."""
        widest = self._buckets[-1]
        parts: list[list[Read]] = [[]]
        room = widest
        for read in reads:
            if self._wide(read):
                parts += [[read], []]
                room = widest
                continue
            while len(read.tokens) > room:
                if room:
                    first, read = _cut(read, room)
                    parts[-1].append(first)
                parts.append([])
                room = widest
            parts[-1].append(read)
            room -= len(read.tokens)
        return [part for part in parts if part]

    def _wide(self, read: Read) -> bool:
        """Return whether the draft tree is too large for a row table."""
        return len(read.parents or ()) > MOST

    def _forward(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        return (
            super()._forward(reads) if self._wide(reads[0]) else self._run(reads, ())[0]
        )

    def _read_states(
        self, reads: Sequence[Read], layers: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        return (
            super()._read_states(reads, layers)
            if self._wide(reads[0])
            else self._run(reads, tuple(layers))
        )

    @torch.inference_mode()
    def _run(
        self,
        reads: Sequence[Read],
        layers: tuple[int, ...],
        tokens: Int[Tensor, "first"] | None = None,
    ) -> Output:
        """Run a forward; `tokens`: on the device, in place of the first ones."""
        spans = self._spans(reads)
        rows, logit_count = spans[-1].stop, sum(read.keep for read in reads)
        splits = -(-max(span.length for span in spans) // SPLIT)
        shape = Shape(
            self._bucket(rows),
            self._bucket(logit_count),
            1 << (splits - 1).bit_length(),
            layers,
        )
        if self._recorded_for != self.pool.rows:
            self._recordings.clear()
        with on(self._device), _memory_for(f"a forward over {shape.rows} rows"):
            table = torch.from_numpy(
                row_table(spans, shape.rows, self._tile, self._padding_row, self._words)
            )
            if shape.rows not in self._tables:
                self._tables[shape.rows] = table.to(self._device, copy=True)
            self._tables[shape.rows].copy_(table)  # the only copy to the device
            if tokens is not None:
                self._tables[shape.rows][: len(tokens), TOKEN] = tokens
            self._current = spans
            if shape not in self._recordings:
                self._recordings[shape] = self._record(partial(self._work, shape))
                self._recorded_for = self.pool.rows
            logits, states = self._recordings[shape]()
            return logits[:logit_count].clone(), states[:rows].clone()

    def _bucket(self, rows: int) -> int:
        return next(bucket for bucket in self._buckets if bucket >= rows)

    def _record(self, work: Callable[[], Output]) -> Callable[[], Output]:
        """Record work. The first recording must succeed; later ones may fail."""
        try:
            return self._runner(work)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if not self._recordings:
                raise
            warnings.warn(
                f"cannot record a forward as a CUDA graph: {error}. It runs without, "
                "only slower",
                stacklevel=2,
            )
            return work

    def _work(self, shape: Shape, table: Tensor | None = None) -> Output:
        table = self._tables[shape.rows] if table is None else table
        rows = table[:, PLACE].long()
        if self._kernel:
            plan = FixedPlan(
                self.pool,
                table,
                self._words,
                (shape.splits, self._tile),
                rows,
                self.windows,
            )
        else:
            plan = Plan(self.pool, self._current, rows, self.windows)
        fused = fused_forwards(self.model) if self._kernel else {}
        with (
            replaced_forwards(fused),
            listening(self.model, shape.layers)
            if shape.layers
            else nullcontext(lambda: rows[:0, None]) as captured,
        ):
            output = self.model(
                input_ids=table[None, :, TOKEN].long(),
                position_ids=table[None, :, POSITION].long(),
                use_cache=False,
                logits_to_keep=table[: shape.kept, KEPT].long(),
                plan=plan,
            )
        return output.logits[0], captured()


class Recorder:
    """A recorder of CUDA graphs; all recordings of a backend share their memory, as
    only one runs at a time.
    """

    def __init__(self) -> None:
        self._last: Callable[[], torch.cuda.CUDAGraph | None] = lambda: None

    def __call__(self, work: Callable[[], Output]) -> Callable[[], Output]:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        # compilation, allocation and choices of the first run must not be recorded
        with torch.cuda.stream(aside):
            work()
            work()
        here = torch.cuda.current_stream()
        here.wait_stream(aside)
        # the memory is freed with the last recording that uses it
        last = self._last()
        memory = None if last is None else last.pool()
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.stream(here),  # a recording that fails leaves another stream
            torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"),
        ):
            output = work()
        self._last = ref(graph)

        def replay() -> Output:
            graph.replay()
            return output

        return replay


def _cut(read: Read, at: int) -> tuple[Read, Read]:
    """Split a read into its first `at` tokens and the rest, which may both be parts of
    its tree.
    """
    after = len(read.tokens) - at
    committed = len(read.tokens) + read.held - len(read.parents or ())
    keep = min(read.keep, after)
    if at <= committed:
        first = Read(read.id, read.past, read.tokens[:at], keep=read.keep - keep)
        past = read.past + at
        return first, replace(read, past=past, tokens=read.tokens[at:], keep=keep)
    assert read.parents is not None
    held = read.held + at - committed
    first = replace(
        read,
        tokens=read.tokens[:at],
        parents=read.parents[:held],
        keep=read.keep - keep,
    )
    past = read.past + committed
    return first, replace(
        read, past=past, tokens=read.tokens[at:], keep=keep, held=held
    )


def on(device: torch.device) -> Any:
    """Return a context that makes `device` current: kernels launch there, wherever
    their tensors are.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def _memory_for(what: str) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"cannot allocate {what}: {words(error)}. Lower 'max_tokens', the batch "
            "size or the context, or use a smaller dtype"
        ) from error
