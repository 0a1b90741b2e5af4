"""Drives a Hugging Face model on CUDA in forwards of few shapes, each recorded once: a round of the target is a replay.

Knows shapes and recordings; knows nothing about drafting. Only attention is not the model's own: it is the kernel of
native/attention.py, for every row, so that prompts and guesses are read alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from foreword.errors import ModelError, words
from foreword.model.attention import attend as plainly
from foreword.model.cache import KVPool
from foreword.model.listen import listening
from foreword.model.plan import Plan, Read, Span
from foreword.model.pooled import PooledDriver
from foreword.model.sheet import columns, sheet
from foreword.native.attention import KEPT, MOST, PLACE, POSITION, SPLIT, TOKEN, Scoring, attend, library, tiled

GRAPH = "graph"
NAME = "foreword_graph"
CAPABILITY = (8, 0)
"""The oldest GPUs that multiply bfloat16."""
BUCKETS = (16, 32, 64, 128, 256, 512)
"""Rows of a forward, padding included: one shape for whatever is plain decoding or a few guesses."""

Said = tuple[Tensor, Tensor]
"""Logits and hidden states, of the rows of a bucket."""
Runner = Callable[[Callable[[], Said]], Callable[[], Said]]
"""Takes work that reads and writes the same memory every time; gives what does it again."""


def refused(model: PreTrainedModel) -> str | None:
    """Why this model cannot be driven this way; None if it can."""
    device = model.device
    if device.type != "cuda":
        return "it is made for CUDA"
    if any(weight.device != device for weight in model.parameters()):
        return "its weights lie on several devices"
    found = torch.cuda.get_device_capability(device)
    if found < CAPABILITY:
        return f"compute capability {found[0]}.{found[1]} is below {CAPABILITY[0]}.{CAPABILITY[1]}"
    made = library()
    return made if isinstance(made, str) else None


@dataclass(frozen=True, slots=True)
class Fixed:
    """One forward, told by tensors that stay where they are. Travels through the model as the keyword `plan`."""

    pool: KVPool
    sheet: Int[Tensor, "rows width"]
    words: dict[int | None, int]
    """Columns of the sheet, by window."""
    at: tuple[int, int]
    """Splits of keys, rows of a tile."""
    rows: Int[Tensor, "rows"]
    asked: dict[int, int | None]
    """As in `Plan`."""


def attend_in_place(
    module: nn.Module,
    query: Float[Tensor, "1 heads rows dim"],
    key: Float[Tensor, "1 kv_heads rows dim"],
    value: Float[Tensor, "1 kv_heads rows value_dim"],
    attention_mask: Tensor | None,
    *,
    plan: Fixed | Plan | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "1 rows heads value_dim"], None]:
    """What `attend` of model/attention.py is, for a forward of fixed shape; any other goes there."""
    if not isinstance(plan, Fixed):
        return plainly(module, query, key, value, attention_mask, plan=plan, **options)
    layer, window = int(module.layer_idx), options.get("sliding_window")  # type: ignore[arg-type]
    plan.asked[layer] = window
    keys, values = plan.pool.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), plan.rows)
    scale, sinks = options.get("scaling"), options.get("s_aux")
    scoring = Scoring(
        query.shape[-1] ** -0.5 if scale is None else scale,
        window,
        options.get("softcap"),
        getattr(module, "sinks", None) if sinks is None else sinks,
    )
    words = plan.words[None if window is None or window >= MOST else window]
    return attend(query[0].transpose(0, 1), keys, values, plan.sheet, scoring, (words, *plan.at))[None], None


AttentionInterface.register(NAME, attend_in_place)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is fixed in a recording."""

    rows: int
    kept: int
    splits: int
    layers: tuple[int, ...]
    """Whose hidden states are heard."""


class GraphDriver(PooledDriver):
    """Packs what is read into a forward of one of a few shapes. Rows of padding write to a row that nobody reads."""

    def __init__(
        self,
        model: PreTrainedModel,
        runner: Runner | None = None,
        buckets: tuple[int, ...] = BUCKETS,
        *,
        kernel: bool = True,
    ) -> None:
        """Without the kernel attention is the plain one, which cannot be recorded; `runner` then runs work as it is.

        With a single bucket all forwards have one shape. Raises ModelError for a model whose shapes cannot be fixed.
        """
        super().__init__(model)
        if self._length is not None:
            raise ModelError("its rotary embedding depends on the length of the text")
        model.set_attn_implementation(NAME)
        config = model.config.get_text_config()
        heads = getattr(config, "num_attention_heads", 1)
        self._tile = tiled(heads, getattr(config, "num_key_value_heads", None) or heads)
        self._words = columns([getattr(config, "sliding_window", None)])
        self._runner, self._buckets, self._kernel = runner or Recorder(), buckets, kernel
        self._unread = self._pool.reserve(1).start
        self._sheets: dict[int, Tensor] = {}
        self._ways: dict[Shape, Callable[[], Said]] = {}
        self._recorded_for = 0
        """Rows of the pool when the recordings were made; it moves when it grows."""
        self._current: tuple[Span, ...] = ()

    def open(self, id: int, capacity: int) -> None:
        with _room_for(f"the keys and values of {capacity} tokens more"):
            super().open(id, capacity)

    def _forwards(self, reads: List[Read]) -> List[List[Read]]:
        """As many as the widest shape needs; guesses of one tree stay together."""
        widest = self._buckets[-1]
        parts: list[list[Read]] = [[]]
        room = widest
        for read in reads:
            if self._wide(read):
                parts += [[read], []]
                room = widest
                continue
            guesses = max(0, len(read.parents or ()) - read.held)
            while len(read.tokens) > room:
                first, read = _cut(read, max(0, min(room, len(read.tokens) - guesses)))
                parts[-1] += [first] if first.tokens else []
                parts.append([])
                room = widest
            parts[-1].append(read)
            room -= len(read.tokens)
        return [part for part in parts if part]

    def _wide(self, read: Read) -> bool:
        """No sheet has room for the guesses of this tree."""
        return len(read.parents or ()) > min(MOST, self._buckets[-1])

    def _forward(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        return super()._forward(reads) if self._wide(reads[0]) else self._run(reads, ())[0]

    def _heard(self, reads: List[Read], layers: List[int]) -> tuple[Tensor, Tensor]:
        return super()._heard(reads, layers) if self._wide(reads[0]) else self._run(reads, tuple(layers))

    @torch.inference_mode()
    def _run(self, reads: List[Read], layers: tuple[int, ...]) -> Said:
        spans = self._spans(reads)
        rows, kept = spans[-1].stop, sum(read.keep for read in reads)
        splits = -(-max(span.length for span in spans) // SPLIT)
        shape = Shape(self._bucket(rows), self._bucket(kept), 1 << (splits - 1).bit_length(), layers)
        if self._recorded_for != self._pool.rows:
            self._ways.clear()
        with _on(self._device), _room_for(f"a forward over {shape.rows} rows"):
            told = torch.from_numpy(sheet(spans, shape.rows, self._tile, self._unread, self._words))
            if shape.rows not in self._sheets:
                self._sheets[shape.rows] = told.to(self._device, copy=True)
            self._sheets[shape.rows].copy_(told)  # the one copy to the device
            self._current = spans
            if shape not in self._ways:
                self._ways[shape] = self._again(partial(self._work, shape))
                self._recorded_for = self._pool.rows
            logits, heard = self._ways[shape]()
            return logits[:kept].clone(), heard[:rows].clone()

    def _bucket(self, rows: int) -> int:
        return next(bucket for bucket in self._buckets if bucket >= rows)

    def _again(self, work: Callable[[], Said]) -> Callable[[], Said]:
        """The first recording must succeed, or the probe takes another way; later ones may fail."""
        try:
            return self._runner(work)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if not self._ways:
                raise
            warnings.warn(f"a forward could not be recorded and runs unrecorded, only slower: {error}", stacklevel=2)
            return work

    def _work(self, shape: Shape) -> Said:
        table = self._sheets[shape.rows]
        places = table[:, PLACE].long()
        if self._kernel:
            plan = Fixed(self._pool, table, self._words, (shape.splits, self._tile), places, self.asked)
        else:
            plan = Plan(self._pool, self._current, places, self.asked)
        with listening(self._model, shape.layers) if shape.layers else nullcontext(lambda: places[:0, None]) as heard:
            output = self._model(
                input_ids=table[None, :, TOKEN].long(),
                position_ids=table[None, :, POSITION].long(),
                use_cache=False,
                logits_to_keep=table[: shape.kept, KEPT].long(),
                plan=plan,
            )
        return output.logits[0], heard()


class Recorder:
    """Records work as a CUDA graph; all recordings of a driver share their memory, as only one runs at a time."""

    def __init__(self) -> None:
        self._memory: Any = None

    def __call__(self, work: Callable[[], Said]) -> Callable[[], Said]:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # what is compiled, allocated or chosen on first use must not be recorded
            work()
            work()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            said = work()
        self._memory = graph.pool()

        def replay() -> Said:
            graph.replay()
            return said

        return replay


def _cut(read: Read, at: int) -> tuple[Read, Read]:
    """The first `at` tokens, all of them committed, and the rest."""
    after = len(read.tokens) - at
    first = Read(read.id, read.past, read.tokens[:at], keep=max(0, read.keep - after))
    return first, replace(read, past=read.past + at, tokens=read.tokens[at:], keep=min(read.keep, after))


def _on(device: torch.device) -> Any:
    """Kernels are launched on the current device, whichever their tensors are on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def _room_for(what: str) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelError(
            f"there is no room for {what}: {words(error)}. Lower max_tokens, the requests at a time or the context, or "
            "take a smaller dtype"
        ) from error
