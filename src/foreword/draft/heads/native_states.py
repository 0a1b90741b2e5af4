"""The base of heads in C that read a hidden state of the target beside each token, then
their own states.
"""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from foreword.draft.heads.hidden_states import HeadStates
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.model.executors.native.angles import Angles
from foreword.model.executors.native.executor import MARGIN, NativeExecutor
from foreword.model.executors.native.layout import LANES
from foreword.model.executors.native.rows import Rows
from foreword.native import forward

FLOAT = 4
"""Bytes of a number in a state."""


class NativeStateHead(NativeExecutor):
    """A head in C: reads many sequences and keeps its hidden states at each sequence's
    end and draft tokens.
    """

    def __init__(self, rows: Rows, angles: Angles, *, normed: bool) -> None:
        """`normed`: the head reads its own states after the final norm, else before."""
        super().__init__(rows, angles)
        self.head_states = HeadStates()
        self._captured = c_int64(1 if normed else 2)

    @abstractmethod
    def fused(
        self, given: Float[Tensor, "tokens features"]
    ) -> Float[Tensor, "tokens hidden"]:
        """Return what the head reads of the target's states."""

    def close(self, id: int) -> None:
        super().close(id)
        self.head_states.forget(id)

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept draft_vocab"]:
        logits = super().read(reads)
        self.head_states.keep(reads, self._hidden)
        return logits

    def _prepare(
        self,
        reads: Sequence[Read],
        logits: Tensor,
        *,
        rows: int = 0,
        beyond: int = MARGIN,
    ) -> forward.Forward:
        forward = super()._prepare(reads, logits, rows=rows, beyond=beyond)
        states = [self._before(read) for read in reads]
        pointers = [
            state.data_ptr() + row * state.stride(0) * FLOAT
            for state, taken in states
            for row in taken
        ]
        given = (c_void_p * len(pointers))(*pointers)
        hidden = torch.empty(
            forward.rows + beyond, self.model.hidden, dtype=torch.float32
        )
        self._hidden = hidden[: forward.rows]
        self._alive += [states, given, hidden]
        forward.given = ctypes.addressof(given)
        forward.hidden_states = hidden.data_ptr()
        forward.hidden_layer_count = 1
        forward.hidden_layers = ctypes.addressof(self._captured)
        return forward

    def _before(
        self, read: Read
    ) -> tuple[Float[Tensor, "states hidden"], Sequence[int]]:
        """Return states and the row read beside each token: the target's for committed
        tokens, else the head's.
        """
        if read.parents:
            held = self.head_states.of(read.id)
            parents = [parent + 1 for parent in read.parents[read.held :]]
            if max(parents) >= len(held):
                raise ModelError(
                    "cannot read draft tokens before their parents: got parents "
                    f"{read.parents}, {read.held} read. Order the tokens parents first"
                )
            return held, parents
        fused = self.fused(self.head_states.given(read.id)).float().contiguous()
        return fused, range(len(fused))


def unfit_head(head: nn.Module, embedding: nn.Module, target: Model) -> str | None:
    """Return why C cannot run a head with a layer `fc` that fuses hidden states, on
    these embeddings; None if only its other layers can say.
    """
    weights = [*head.parameters(), *embedding.parameters()]
    if any(
        weight.device.type != "cpu" or weight.dtype != torch.bfloat16
        for weight in weights
    ):
        return "only bfloat16 on CPU is supported"
    if target.ranks is not None:
        return "the target's embeddings are split among processes"
    fc: Any = head.get_submodule("fc")
    if type(embedding) is not nn.Embedding or fc.in_features % LANES:
        return "the target's embeddings or hidden size are not supported"
    return None
