"""The base of heads in C."""

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from foreword.draft.heads.reader import HeadExecutor, HeadOutput
from foreword.model import Model, Read
from foreword.model.architectures import scales
from foreword.model.executors.native.angles import Angles
from foreword.model.executors.native.executor import MARGIN, NativeExecutor, lay_words
from foreword.model.executors.native.layout import LANES
from foreword.model.executors.native.rows import Rows
from foreword.model.executors.native.supported import activation
from foreword.native import forward
from foreword.native.workspace import Workspace, multiplied
from foreword.types.growth import GrownTree, TreeRequest


class NativeHead(NativeExecutor, HeadExecutor):
    """A head in C, with the keys and values of many sequences."""

    def __init__(
        self, target: Model, rotaries: Sequence[Any], kv_heads: int, dim: int
    ) -> None:
        """`rotaries`: the rotary embedding of each layer."""
        rows = Rows([kv_heads] * len(rotaries), dim)
        super().__init__(rows, Angles(list(rotaries)))
        self.target = target  # C points into it
        self._kv_heads, self._dim = kv_heads, dim
        self.captured = len(rotaries)
        """Number of the head's hidden state that is returned: after its last norm."""
        self._states: Tensor | None = None
        """The state beside each row of the next forward; None if it reads none."""

    def lay_out(
        self, head: Any, layers: Sequence[nn.Module], sizes: Any, embedding: Any
    ) -> forward.Model:
        """Pack decoder layers and the layer `fc` that fuses the target's states, to be
        run on these embeddings; return the description, which may be completed.
        """
        self._embedding = embedding
        packed = (forward.Layer * len(layers))()
        for described, layer in zip(packed, layers, strict=True):
            self.matrices.pack_layer(described, layer)
        self.pool.attach(packed)
        model = forward.Model(
            layers=len(layers),
            hidden=sizes.hidden_size,
            heads=sizes.num_attention_heads,
            kv_heads=self._kv_heads,
            dim=self._dim,
            intermediate=sizes.intermediate_size,
            eps=sizes.rms_norm_eps,
            scale=self._dim**-0.5,
            norm=self.norm(head.norm),
            layer=packed,
            activation=activation(sizes),
        )
        lay_words(model, embedding, self.target.backend)
        self._fc = forward.Model(
            hidden=head.fc.in_features,
            vocab=head.fc.out_features,
            head=self.matrices.pack(head.fc.weight),
        )
        self._fc_scratch = Workspace(self._fc)
        return model

    def norm(self, norm: Any) -> int:
        """Hold the weights of a norm; return their address."""
        return self.matrices.keep(scales(norm).detach().float())

    def quantize(self, *others: forward.Model, coding: int = forward.BYTES) -> None:
        super().quantize(self._fc, *others, coding=coding)

    def fused(
        self, states: Float[Tensor, "tokens features"]
    ) -> Float[Tensor, "tokens hidden"]:
        """Return what the head reads of the target's states."""
        scratch = self._fc_scratch
        return multiplied(self.library, self._fc, scratch, states, self.threads)

    def run(self, reads: Sequence[Read], states: Sequence[Tensor]) -> HeadOutput:
        pairs = zip(reads, states, strict=True)
        inputs = [own if read.parents else self.fused(own) for read, own in pairs]
        self._states = torch.cat(inputs).float()
        return self.read(reads), self._hidden

    def grow_beside(
        self,
        read: Read,
        states: Tensor,
        ask: TreeRequest,
    ) -> GrownTree:
        self._states = self.fused(states).float().contiguous()
        return self.grow(read, ask)

    def _prepare(
        self,
        reads: Sequence[Read],
        logits: Tensor,
        *,
        rows: int = 0,
        beyond: int = MARGIN,
    ) -> forward.Forward:
        call = super()._prepare(reads, logits, rows=rows, beyond=beyond)
        if self._states is None:
            return call
        start = self._states.data_ptr()
        step = self._states.stride(0) * self._states.itemsize
        call.given = self.alive(
            array("q", range(start, start + call.rows * step, step))
        )
        hidden = self._capture(call, (self.captured,), call.rows + beyond)
        self._hidden = hidden[: call.rows]
        return call


def unfit_head(head: Any, embedding: nn.Module, target: Model) -> str | None:
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
    if type(embedding) is not nn.Embedding or head.fc.in_features % LANES:
        return "the target's embeddings or hidden size are not supported"
    return None
