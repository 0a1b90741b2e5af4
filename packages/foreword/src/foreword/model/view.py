"""Views for self-speculation: the same model with skipped sublayers, or with weights in
fewer bits.

A view is for drafting: its scores are not the model's.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.model.executors.native.backend import NativeBackend
from foreword.model.executors.native.executor import NativeExecutor
from foreword.model.executors.torch.backend import PoolBackend, resumes
from foreword.model.kv.early import EarlyRows
from foreword.model.kv.memories import Kind
from foreword.model.kv.pages import PagePool
from foreword.model.kv.reads import Read
from foreword.model.layers import layer_count
from foreword.model.model import Model
from foreword.model.skip import LayerSkip, skipping, sublayers_of
from foreword.native import forward
from foreword.types.growth import GrownTree, TreeRequest

CODINGS = {16: forward.WHOLE, 8: forward.BYTES, 4: forward.GROUPS}
"""Bits of a weight -> its coding on the C side."""

During = Callable[[], AbstractContextManager[Any]]
"""Skips sublayers in forwards that run inside."""


class View:
    """A backend over a second executor of a model, with skipped sublayers.

    A guest has the pages and memories of the first executor, which opens and closes
    the sequences.
    """

    def __init__(
        self,
        executor: NativeExecutor | PoolBackend,
        during: During,
        embed: Callable[[Tensor], Tensor],
        *,
        first: int = 0,
    ) -> None:
        """`embed`: the model's embeddings, which are never quantized. `first`: how many
        layers it runs, where the model's own forward can go on after them; else 0.
        """
        self.executor = executor
        self._during = during
        self.mode = executor.mode
        self.copies = executor.copies
        self.embed = embed
        self.guest = executor.guest
        self.early: EarlyRows | None = None
        """What it has run, where it runs the first layers of the model only."""
        if first:
            self.early = EarlyRows(first, lambda reads: self._hidden(reads)[1])
            self.pool.early.add(self.early)

    @property
    def pool(self) -> PagePool:
        """The pages of its keys and values."""
        return self.executor.pool

    def memory(self, kind: type[Kind]) -> Kind | None:
        """Return the memory of a kind; None if there is none."""
        return self.executor.memory(kind)

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        if self.guest:
            return 0
        return self.executor.open(id, capacity, tokens, tenant, layers)

    def close(self, id: int) -> None:
        if not self.guest:
            self.executor.close(id)

    def give(self, id: int, material: object) -> None:
        if not self.guest:
            self.executor.give(id, material)

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        if self.early is None:
            with self._during():
                return self.executor.read(reads)
        logits, states = self._hidden(reads)
        parts = states.split([len(read.tokens) for read in reads])
        for read, part in zip(reads, parts, strict=True):
            self.early.note(read, part)
        return logits

    def _hidden(self, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        """Read, and return also the hidden states that the next layer would read."""
        assert self.early is not None
        with self._during():
            return self.executor.read_hidden(reads, (self.early.layers,))

    def move(self, id: int, source: list[int], start: int) -> None:
        self.executor.move(id, source, start)

    def grow(self, read: Read, ask: TreeRequest) -> GrownTree | None:
        """Read the end of a sequence, then grow a draft tree after it, in one call;
        None where the executor grows none.
        """
        executor = self.executor
        if not isinstance(executor, NativeExecutor):
            return None
        if self.early is None:
            return executor.grow(read, ask)
        grown, states = executor.grow_hidden(read, ask, self.early.layers)
        assert states is not None
        count = len(read.tokens)
        end = read.start + count
        self.early.note(read, states[:count])
        drafted = Read(read.id, end, grown.read, grown.read_parents)
        self.early.note(drafted, states[count : count + len(grown.read)])
        return grown


def view(
    target: Model,
    *,
    skip: LayerSkip | None = None,
    bits: int = 16,
    spare: int = 0,
    kv: str | None = None,
) -> Model:
    """Return the same model with skipped sublayers and its weights in 8 or 4 bits, or
    with 16 as the target has them.

    With `spare` > 0 the view shares the target's keys and values: it need not read
    again what the target has read, and the target's next forward overwrites what the
    view wrote. Every sequence opened from then on gets `spare` more rows for it. With 0
    the view has a pool of its own, with keys and values in the form `kv`.

    Raises InvalidRequest where the target's backend has no such view.
    """
    backend, skip = target.backend, skip or LayerSkip()
    layers = layer_count(target.hf.config)
    if any(not 0 <= layer < layers for layer in skip.attention | skip.mlp):
        raise InvalidRequest(
            f"cannot skip other layers than 0 to {layers - 1} of {target.name}. Give "
            "numbers in that range"
        )
    if isinstance(backend, NativeBackend) and not backend.copies:
        raise InvalidRequest(
            f"cannot draft with layers of {target.name}: they keep a recurrent state, "
            "which draft tokens cannot share. Use another method"
        )
    reader = _reader(target, skip, bits, kv, shares=spare > 0)
    pool = backend.pool
    assert pool is not None, "backends without pages have no views"
    if not spare:
        reader.pool.limit = pool.limit
    pool.spare = max(pool.spare, spare)
    twin = copy(target)
    label = (
        f"{target.capability.backend}, {bits} bits, without {sorted(skip.attention)} "
        f"and {sorted(skip.mlp)}"
    )
    twin.backend = reader
    twin.capability = replace(target.capability, backend=label)
    twin.forget_cost()  # a view has its own
    return twin


def _reader(
    target: Model, skip: LayerSkip, bits: int, kv: str | None, *, shares: bool
) -> View:
    """Return the backend of a view. Raises InvalidRequest where there can be none."""
    backend = target.backend
    if isinstance(backend, NativeBackend):
        _check_sizes(target.name, backend, bits)
        pool = None if shares else backend.empty_pool(kv)
        twin = backend.twin(pool, CODINGS[bits])
        twin.skip(skip.attention, skip.mlp)
        is_same = shares and bits == 16 and not backend.model.stream
        first = skip.exit(backend.model.layers) if is_same else 0
        return View(twin, nullcontext, target.embed, first=first)
    if bits != 16:
        raise InvalidRequest(
            f"cannot read {target.name} with weights of {bits} bits: only backend "
            f"'native' can, and it runs on '{target.capability.backend}'. Use bfloat16 "
            "on a CPU with a C compiler, or another method"
        )
    if isinstance(backend, PoolBackend):
        during = partial(skipping, sublayers_of(target.hf), skip)
        goes_on = shares and resumes(backend)
        first = skip.exit(layer_count(target.hf.config)) if goes_on else 0
        return View(backend.twin(shares=shares), during, target.embed, first=first)
    raise InvalidRequest(
        f"cannot skip sublayers of {target.name}: only backends 'native' and 'pool' "
        f"can, and it runs on '{target.capability.backend}' "
        f"({target.capability.reason}). Use another method"
    )


def _check_sizes(name: str, backend: NativeBackend, bits: int) -> None:
    if bits not in CODINGS:
        raise InvalidRequest(
            f"'bits' must be one of {', '.join(map(str, CODINGS))}, got {bits}"
        )
    if bits == 16:
        return
    m = backend.model
    inner = m.experts.contents.inner if m.experts else m.intermediate
    depths = (m.hidden, inner, m.heads * m.dim)
    if m.coding != forward.WHOLE:
        raise InvalidRequest(
            f"cannot draft with {name} in {bits} bits: its own weights are "
            "quantized. Use another method"
        )
    if bits == 4 and any(depth % forward.GROUP for depth in depths):
        raise InvalidRequest(
            f"cannot read {name} with weights of 4 bits: its sizes {depths} are not "
            f"multiples of {forward.GROUP}. Use another method"
        )
