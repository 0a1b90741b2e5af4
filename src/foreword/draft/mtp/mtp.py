"""Drafter with the multi-token-prediction layers of the target's checkpoint
(DeepSeek-V3: arXiv 2412.19437, section 2.2; one layer used again: FastMTP, arXiv
2509.18362).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import Source
from foreword.draft.heads.native_states import NativeStateHead
from foreword.draft.heads.state_drafter import StateDrafter
from foreword.draft.heads.state_packing import StatePacking
from foreword.draft.mtp.mtp_assistant import AssistantReader, is_assistant
from foreword.draft.mtp.mtp_checkpoint import load
from foreword.draft.mtp.mtp_head import MtpHead
from foreword.errors import InvalidRequest
from foreword.model import Model, Read, Tokenizer
from foreword.model.architectures import (
    drop_weights,
    routed,
    scales,
    window,
)
from foreword.model.executors.native.angles import Angles
from foreword.model.executors.native.backend import NativeBackend
from foreword.model.executors.native.rotary import rotaries_of
from foreword.model.executors.native.rows import Rows, kv_head_count
from foreword.model.executors.native.supported import inside
from foreword.model.executors.torch.packing import Packed
from foreword.model.layers import layer_count
from foreword.native import forward
from foreword.registry import OWN_METHODS
from foreword.types import Request


class AssistantDrafter(StateDrafter):
    """Drafter with a model that reads the target's keys and values, and its last hidden
    state.
    """

    about = OWN_METHODS["mtp"]
    reads_target = True

    def __init__(self, reader: AssistantReader, target: Model) -> None:
        super().__init__(reader, (layer_count(target.hf.config),))

    def rereads(self, sequence: Request) -> bool:
        del sequence  # it reads the end of a text alone
        return False


class MtpDrafter(StateDrafter):
    """Drafter whose layers read the target's last hidden state, then their own; each
    tree level takes one forward of them.

    A single layer is used again for each further token. Several layers draft one token
    each.
    """

    about = OWN_METHODS["mtp"]

    def __init__(
        self,
        head: MtpHead,
        target: Model,
    ) -> None:
        """`head`: in the target's dtype, on its device."""
        head.eval().requires_grad_(False)
        reader = (
            MtpReader(head, target)
            if unsupported(head, target)
            else NativeMtp(head, target)
        )
        super().__init__(reader, (layer_count(target.hf.config),))
        if head.depth > 1:
            self.deep = head.depth

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> StateDrafter:
        """Load the layers from `source`, a folder or hub id; None = from the target's
        own checkpoint.
        """
        del tokenizer  # the layers use the target's tokenizer
        if not isinstance(source, str | Path | None):
            raise InvalidRequest(
                "cannot draft with this model: the method takes the layers of a "
                "checkpoint. Give draft='folder or hub id', or leave it out"
            )
        target.check_hidden_states((layer_count(target.hf.config),))
        if source is not None and is_assistant(source):
            return AssistantDrafter(AssistantReader(source, target), target)
        head = load(target.name if source is None else source, target.hf, target.dtype)
        drafter = cls(head.to(target.device), target)
        if isinstance(drafter._reader, NativeMtp):
            drafter._reader.quantize()
        return drafter


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


class MtpReader(StatePacking):
    """Reader of many sequences; it keeps its states at each sequence's end and draft
    tokens: of all layers, side by side.
    """

    def __init__(
        self,
        head: MtpHead,
        target: Model,
    ) -> None:
        # packed layers have no weights to ask
        self._dtype = head.dtype
        super().__init__(head, target)
        self._head = head
        self._target = target
        self.context: int = target.context

    @torch.inference_mode()
    def read(
        self,
        reads: Sequence[Read],
    ) -> Float[Tensor, "kept vocab"]:
        with self._threads():
            rows = self._pack(reads)
            depths = [depth for read in reads for depth in _depths(read)]
            hidden = self._states(reads, rows, first=self._layer(min(depths)))
            self.head_states.keep(reads, hidden.flatten(1))
            if not rows.kept:
                return hidden.new_empty(0, self._target.vocab)
            layers = [self._layer(depths[row]) for row in rows.kept]
            return self._target.lm_head(hidden[rows.kept, layers])

    def _layer(self, depth: int) -> int:
        """Return the layer that predicts what follows draft tokens at this depth; 0 is
        the end of the text.
        """
        return min(depth, self._head.depth - 1)

    def _states(
        self, reads: Sequence[Read], rows: Packed, *, first: int
    ) -> Float[Tensor, "rows layers hidden"]:
        """Return the states of the layers from `first` on; zeros before it."""
        before = torch.cat([self._before(read) for read in reads])
        count = len(before)
        packed = self._padded(rows)
        lack = packed.shape[1] - count
        embedded = self._target.embed(packed[:1]).to(before.dtype)
        states = torch.zeros_like(before)
        for layer in range(first, self._head.depth):
            given = F.pad(before[:, layer], (0, 0, 0, lack))
            found: Any = self._head(
                layer, embedded, given[None], packed[1:], plan=rows.plan
            )
            states[:, layer] = found[0, :count]
            if layer + 1 < self._head.depth:
                self._shift(reads, states[:, layer], before[:, layer + 1])
        return states

    def _before(
        self,
        read: Read,
    ) -> Float[Tensor, "tokens layers hidden"]:
        """Return the states that the layers read beside each token.

        For committed tokens the first layer reads the target's; the others wait for the
        layer before them (`_shift`). Draft tokens have the states of their parent.
        """
        depth = self._head.depth
        if not read.parents:
            given = self.head_states.given(read.id).to(self._dtype)
            rest = given.new_zeros(len(given), depth - 1, self._head.hidden)
            if depth > 1 and (own := self._last(read)) is not None:
                rest[0] = own[:-1]
            return torch.cat([given[:, None], rest], 1)
        parents = [parent + 1 for parent in read.parents[read.held :]]
        own = self.head_states.of(read.id)[parents]
        own = own.unflatten(1, (depth, self._head.hidden))
        return own if depth == 1 else own[:, [0, *range(depth - 1)]]

    def _last(
        self,
        read: Read,
    ) -> Float[Tensor, "layers hidden"] | None:
        """Return the states at the last committed token before a read, if there are
        any.
        """
        held = self.head_states.held(read.id)
        if held is None or not read.past:
            return None
        return held[0].unflatten(0, (self._head.depth, self._head.hidden))

    def _shift(
        self,
        reads: Sequence[Read],
        states: Float[Tensor, "rows hidden"],
        following: Float[Tensor, "rows hidden"],
    ) -> None:
        """Write the states of a layer at committed tokens to the rows after them, where
        the next layer reads them.
        """
        start = 0
        for read in reads:
            stop = start + len(read.tokens)
            if not read.parents:
                following[start + 1 : stop] = states[start : stop - 1]
            start = stop


def _depths(read: Read) -> Sequence[int]:
    """Return the depth of each token as a draft token; 0 for committed ones."""
    if not read.parents:
        return [0] * len(read.tokens)
    return [depth + 1 for depth in read.depths]
