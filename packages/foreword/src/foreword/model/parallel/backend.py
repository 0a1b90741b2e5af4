"""Pool backend of a model that is split among ranks, and the messages by which the
other ranks repeat what it does.

The messages are what changes memory or needs every rank: a forward over spans, three
changes of the pool, and a product with embeddings or LM head. All else stays on rank 0:
sequences, the allocator of pages, reused prefixes, drafts, noise. So ranks cannot
disagree about pages: a span names them.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from foreword.errors import InvalidRequest
from foreword.model.backend import Mode
from foreword.model.executors.torch.backend import PoolBackend
from foreword.model.executors.torch.kv_pool import KVPool
from foreword.model.kv.pages import PageTable
from foreword.model.kv.reads import Span
from foreword.model.parallel.lead import Lead


@dataclass(frozen=True, slots=True)
class Forward:
    """A forward over spans, whose pages exist."""

    spans: tuple[Span, ...]

    @classmethod
    def over(cls, spans: tuple[Span, ...]) -> "Forward":
        """Return the forward over these spans, without what only the allocator reads:
        their texts and hidden states.
        """
        tables = [
            PageTable(span.table.capacity, span.table.pages, span.table.run)
            for span in spans
        ]
        pairs = zip(spans, tables, strict=True)
        return cls(tuple(replace(span, table=table) for span, table in pairs))

    def run(self, backend: "ParallelBackend") -> None:
        """Write the keys and values of this rank's heads."""
        backend.run(self.spans)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A pool that grows to this many rows."""

    rows: int

    def run(self, backend: "ParallelBackend") -> None:
        """Grow the pool of this rank."""
        backend.pool.stretch(self.rows)


@dataclass(frozen=True, slots=True)
class Move:
    """Rows of the pool that are copied to others."""

    source: list[int]
    target: list[int]

    def run(self, backend: "ParallelBackend") -> None:
        """Copy the rows of this rank."""
        rows = torch.tensor([self.source, self.target], device=backend.device)
        backend.pool.move(rows[0], rows[1])


@dataclass(frozen=True, slots=True)
class Copy:
    """A page of the pool that is copied to another."""

    source: int
    target: int

    def run(self, backend: "ParallelBackend") -> None:
        """Copy the page of this rank."""
        backend.pool.copy(self.source, self.target)


@dataclass(frozen=True, slots=True)
class Apply:
    """A tensor that the embeddings or the LM head are applied to."""

    part: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def run(self, backend: "ParallelBackend") -> None:
        """Receive the tensor and apply this rank's part."""
        tensor = torch.empty(self.shape, dtype=self.dtype, device=backend.device)
        backend.apply(self.part, Lead.share(tensor))


Message: TypeAlias = Forward | Stretch | Move | Copy | Apply
"""What every rank does at the same time."""


class ParallelPool(KVPool):
    """The keys and values of the heads of one rank; where there is a lead, the pools of
    the other ranks change with it.
    """

    lead: Lead | None = None

    def stretch(self, rows: int) -> None:
        with _together(self.lead, Stretch(rows)):
            super().stretch(rows)

    def move(self, source: Int[Tensor, "rows"], target: Int[Tensor, "rows"]) -> None:
        if self.lead is None:
            super().move(source, target)
            return
        with self.lead.together(Move(source.tolist(), target.tolist())):
            super().move(source, target)

    def copy(self, source: int, target: int) -> None:
        with _together(self.lead, Copy(source, target)):
            super().copy(source, target)


class ParallelBackend(PoolBackend):
    """A pool backend over one rank's share of a model. Without a lead it works for its
    own rank, as while the model is loaded and probed, which all ranks do alike.
    """

    POOL = ParallelPool

    def __init__(self, model: PreTrainedModel, mode: Mode) -> None:
        super().__init__(model, mode)
        self.probed = self._device.type == "cpu"  # no backend keeps bits on a GPU
        self.lead: Lead | None = None

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._device

    @property
    def ranks_alive(self) -> bool:
        """Whether all ranks run."""
        return self.lead is None or self.lead.ranks.alive

    def take_lead(self, lead: Lead) -> None:
        """Have the other ranks repeat what is done here from now on."""
        self.lead = lead
        cast("ParallelPool", self.pool).lead = lead

    @torch.inference_mode()
    def follow(self, messages: Iterator[Message]) -> None:
        """Do what rank 0 does."""
        for message in messages:
            message.run(self)

    def run(self, spans: tuple[Span, ...]) -> Float[Tensor, "kept vocab"]:
        """Run the forward of these spans on this rank."""
        return super()._read_spans(spans)

    def _read_spans(self, spans: tuple[Span, ...]) -> Float[Tensor, "kept vocab"]:
        with _together(self.lead, Forward.over(spans)):
            return super()._read_spans(spans)

    def lm_head(
        self, hidden: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows vocab"]:
        """Return the logits of the LM head for hidden states after the final norm."""
        return self._applied("lm_head", hidden)

    def embed(self, tokens: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows hidden"]:
        """Return the input embeddings of tokens."""
        return self._applied("embed", tokens)

    @torch.inference_mode()
    def apply(self, part: str, inputs: Tensor) -> Tensor:
        """Apply this rank's part of the embeddings or of the LM head."""
        if part == "lm_head":
            return super().lm_head(inputs)
        return self.model.get_input_embeddings()(inputs)

    def _applied(self, part: str, inputs: Tensor) -> Tensor:
        message = Apply(part, tuple(inputs.shape), inputs.dtype)
        with _together(self.lead, message):
            if self.lead is not None:
                inputs = Lead.share(inputs)
            return self.apply(part, inputs)

    def twin(self, *, shares: bool) -> NoReturn:
        """Raise InvalidRequest: views have no ranks."""
        raise InvalidRequest(
            "cannot draft with layers of a target that is split among ranks. Use "
            "another method, or leave 'tensor_parallel' out"
        )


def _together(lead: Lead | None, message: Message) -> Any:
    """Return the context in which all ranks do this; without a lead, this one alone."""
    return nullcontext() if lead is None else lead.together(message)
