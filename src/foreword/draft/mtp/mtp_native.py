"""A layer of multi-token prediction in C (csrc/forward.c): one call runs a forward or
grows a whole tree. Reference: reader.py.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.heads.native_states import (
    NativeStateHead,
)
from foreword.draft.mtp.mtp_head import MtpHead
from foreword.model import Model
from foreword.model.architectures import (
    drop_weights,
    routed,
    scales,
    window,
)
from foreword.model.executors.native.angles import Angles
from foreword.model.executors.native.backend import (
    NativeBackend,
)
from foreword.model.executors.native.rotary import (
    rotaries_of,
)
from foreword.model.executors.native.rows import (
    Rows,
    kv_head_count,
)
from foreword.model.executors.native.supported import inside
from foreword.native import forward


def unsupported(head: MtpHead, target: Model) -> str | None:
    """Return why C cannot run these layers; None if it can."""
    if not isinstance(target.backend, NativeBackend):
        return "the target does not run in C"
    if any(weight.dtype != torch.bfloat16 for weight in head.parameters()):
        return "only bfloat16 is supported"
    if head.depth > 1 or head.norm is not None or head.kinds:
        return "several layers, or a norm or rotary embedding of another kind"
    if target.backend.model.stream:
        return "the target's weights are read from a file"
    if routed(head.block):
        return "its MLP has experts"
    return None


class NativeMtp(NativeStateHead):
    """The layer in C, with the target's embeddings and LM head."""

    def __init__(self, head: MtpHead, target: Model) -> None:
        """Pack the linear layers of `head`, and drop its weights to save memory."""
        whole = target.backend
        assert isinstance(whole, NativeBackend), "see `unsupported`"
        whole_model = whole.model
        layer: Any = head.layers[0]
        rotary = next(one for one in reversed(rotaries_of(target.hf)) if one)
        super().__init__(
            Rows([kv_head_count(target.hf)], whole_model.dim),
            Angles([rotary]),
            normed=True,
        )
        self.context: int = target.context
        self._target = target  # the C side points into it
        layers = (forward.Layer * 1)()
        self.matrices.pack_layer(layers[0], head.block)
        layers[0].window = window(head.block)
        self.pool.attach(layers)
        described = forward.Model.from_buffer_copy(whole_model)
        described.layers = 1
        described.layer = layers
        described.intermediate = inside(head.block)
        described.recurrence = None
        described.experts = None
        described.distances = 0
        described.coding = forward.WHOLE
        described.join = self.matrices.pack(layer.eh_proj.weight)
        described.embedding_norm = self._vector(layer.enorm)
        described.state_norm = self._vector(layer.hnorm)
        described.norm = self._vector(layer.post_norm)
        self.describe(described, whole.words)
        drop_weights(head)
        if whole_model.coding != forward.WHOLE:
            self._code(whole_model.coding, [])

    def _vector(self, norm: Any) -> int:
        return self.matrices.keep(scales(norm).detach().float())

    def quantize(self, *others: forward.Model, coding: int = forward.BYTES) -> None:
        """Quantize the layer, and a copy of the LM head; they stay as they are beside a
        target of fewer bits.
        """
        del others
        if self.model.coding == forward.WHOLE:
            backend = self._target.backend
            assert isinstance(backend, NativeBackend), "see `unsupported`"
            address = backend.model.head
            held = backend.matrices.held
            self._code(coding, [one for one in held if one.data_ptr() == address])

    def _code(self, coding: int, heads: list[Tensor]) -> None:
        """Quantize the matrices, also an LM head in `heads`."""
        whole = [*self.matrices.held, *heads]
        self.matrices.drop(self.model)
        self.matrices.code(self.model, coding, whole)
        self.describe(self.model, self.words)

    def fused(
        self, given: Float[Tensor, "tokens features"]
    ) -> Float[Tensor, "tokens hidden"]:
        return given
