"""Drafter with the multi-token-prediction layers of the target's checkpoint
(DeepSeek-V3: arXiv 2412.19437, section 2.2; one layer used again: FastMTP, arXiv
2509.18362).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from foreword.draft.base import Source
from foreword.draft.heads.native_head import NativeHead
from foreword.draft.heads.reader import (
    HeadDrafter,
    HeadExecutor,
    HeadOutput,
    StateReader,
)
from foreword.draft.heads.torch_head import TorchHead
from foreword.draft.mtp.mtp_assistant import Assistant, is_assistant
from foreword.draft.mtp.mtp_checkpoint import load
from foreword.draft.mtp.mtp_head import MtpHead
from foreword.errors import InvalidRequest
from foreword.model import Model, Read, Tokenizer
from foreword.model.architectures import drop_weights, routed, window
from foreword.model.executors.cuda.backend import NAME, FixedPlan
from foreword.model.executors.native.backend import NativeBackend
from foreword.model.executors.native.rotary import rotaries_of
from foreword.model.executors.native.rows import kv_head_count
from foreword.model.executors.native.supported import inside
from foreword.model.executors.torch.packing import Packed
from foreword.model.executors.torch.plan import Plan
from foreword.model.layers import layer_count
from foreword.native import forward
from foreword.registry import OWN_METHODS
from foreword.types import Request
from foreword.types.growth import GrownTree, TreeRequest


class MtpDrafter(HeadDrafter):
    """Drafter whose layers read the target's last hidden state, then their own; each
    tree level takes one forward of them.

    A single layer is used again for each further token. Several layers draft one token
    each. An assistant is a model that replaces the layers.
    """

    about = OWN_METHODS["mtp"]

    def __init__(
        self,
        executor: HeadExecutor,
        target: Model,
        deep: int = 1,
    ) -> None:
        """`deep`: number of layers."""
        states = (layer_count(target.hf.config),)
        super().__init__(StateReader(executor, target.context), states)
        self.executor = executor
        self.reads_target = isinstance(executor, Assistant)
        if deep > 1:
            self.deep = deep

    @classmethod
    def load(
        cls,
        source: Source,
        target: Model,
        tokenizer: Tokenizer | None,
    ) -> "MtpDrafter":
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
            return cls(Assistant(source, target), target)
        head = load(target.name if source is None else source, target.hf, target.dtype)
        drafter = cls.of(head.to(target.device), target)
        if isinstance(drafter.executor, NativeMtp):
            drafter.executor.quantize()
        return drafter

    @classmethod
    def of(cls, head: MtpHead, target: Model) -> "MtpDrafter":
        """Return a drafter with these layers, in the target's dtype, on its device."""
        head.eval().requires_grad_(False)
        kind = TorchMtp if unsupported(head, target) else NativeMtp
        return cls(kind(head, target), target, head.depth)

    def rereads(self, request: Request) -> bool:
        # an assistant reads the end of a text alone
        return not self.reads_target and super().rereads(request)


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


class NativeMtp(NativeHead):
    """The layer in C, with the target's embeddings and LM head."""

    def __init__(self, head: MtpHead, target: Model) -> None:
        """Pack the linear layers of `head`, and drop its weights to save memory."""
        backend = target.backend
        assert isinstance(backend, NativeBackend), "see `unsupported`"
        self._backend, whole = backend, backend.model
        layer: Any = head.layers[0]
        rotary = next(
            rotary for rotary in reversed(rotaries_of(target.hf)) if rotary is not None
        )
        super().__init__(target, [rotary], kv_head_count(target.hf), whole.dim)
        layers = (forward.Layer * 1)()
        self.matrices.pack_layer(layers[0], head.block)
        layers[0].window = window(head.block)
        self.pool.attach(layers)
        described = forward.Model.from_buffer_copy(whole)
        described.layers = 1
        described.layer = layers
        described.intermediate = inside(head.block)
        described.recurrence = None
        described.experts = None
        described.distances = 0
        described.coding = forward.WHOLE
        described.join = self.matrices.pack(layer.eh_proj.weight)
        described.embedding_norm = self.norm(layer.enorm)
        described.state_norm = self.norm(layer.hnorm)
        described.norm = self.norm(layer.post_norm)
        self.describe(described, backend.words)
        drop_weights(head)
        if whole.coding != forward.WHOLE:
            self._code(whole.coding, [])

    def quantize(self, *others: forward.Model, coding: int = forward.BYTES) -> None:
        """Quantize the layer, and a copy of the LM head; they stay as they are beside a
        target of fewer bits.
        """
        del others
        if self.model.coding == forward.WHOLE:
            head = self._backend.model.head
            held = self._backend.matrices.held
            self._code(coding, [part for part in held if part.data_ptr() == head])

    def _code(
        self,
        coding: int,
        heads: list[Tensor],
    ) -> None:
        """Quantize the matrices, also an LM head in `heads`."""
        whole = [*self.matrices.held, *heads]
        self.matrices.drop(self.model)
        self.matrices.code(self.model, coding, whole)
        self.describe(self.model, self.words)

    def fused(
        self, states: Float[Tensor, "tokens hidden"]
    ) -> Float[Tensor, "tokens hidden"]:
        return states


class TorchMtp(TorchHead):
    """The layers in torch; a state holds the states of all layers, side by side."""

    def __init__(self, head: MtpHead, target: Model) -> None:
        # packed layers have no weights to ask
        self._dtype = head.dtype
        config = target.hf.config.get_text_config()
        super().__init__(head, target, config, window(head.block))
        if self._records_chains:
            head.attend_by(NAME)
        self._head = head
        self._ends: dict[int, Float[Tensor, "layers hidden"]] = {}
        """States at the last committed token of each request."""

    def close(self, id: int) -> None:
        super().close(id)
        self._ends.pop(id, None)

    def compute(
        self,
        reads: Sequence[Read],
        states: Sequence[Tensor],
        rows: Packed,
        packed: Int[Tensor, "2 padded"],
    ) -> HeadOutput:
        """Run the layers from the first that a read needs on; the states of those
        before it are zeros.
        """
        inputs = torch.cat(list(map(self._inputs, reads, states)))
        count, depth = len(inputs), self._head.depth
        layers = self._layers(reads)
        embedded = self._target.embed(packed[:1]).to(inputs.dtype)
        hidden = torch.zeros_like(inputs)
        for layer in range(min(layers), depth):
            padded = F.pad(inputs[:, layer], (0, 0, 0, packed.shape[1] - count))
            computed: Any = self._head(
                layer, embedded, padded[None], packed[1:], plan=rows.plan
            )
            hidden[:, layer] = computed[0, :count]
            if layer + 1 < depth:
                _shift(reads, hidden[:, layer], inputs[:, layer + 1])
        if depth > 1:
            lengths = [len(read.tokens) for read in reads]
            for read, part in zip(reads, hidden.split(lengths), strict=True):
                if not read.parents:
                    self._ends[read.id] = part[-1]
        logits = hidden.new_empty(0, self._target.vocab)
        if rows.kept:
            last = [layers[row] for row in rows.kept]
            logits = self._target.lm_head(hidden[rows.kept, last])
        return logits, hidden.flatten(1)

    def grow_beside(
        self, read: Read, states: Tensor, ask: TreeRequest
    ) -> GrownTree | None:
        if self._head.depth > 1:
            return None
        return self.grow_chain(read, ask, states.to(self._dtype))

    def advance(
        self,
        states: Float[Tensor, "rows hidden"],
        packed: Int[Tensor, "2 rows"],
        plan: Plan | FixedPlan,
    ) -> Float[Tensor, "rows hidden"]:
        embedded = self._target.embed(packed[:1]).to(states.dtype)
        return self._head(0, embedded, states[None], packed[1:], plan=plan)[0]

    def logits(
        self, hidden: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows vocab"]:
        return self._target.lm_head(hidden)

    def _layers(self, reads: Sequence[Read]) -> list[int]:
        """Return the layer that predicts what follows each token: the first after the
        end of the text, the next ones after draft tokens.
        """
        depths: list[int] = []
        for read in reads:
            depths += (
                [depth + 1 for depth in read.depths]
                if read.parents
                else [0] * len(read.tokens)
            )
        return [min(depth, self._head.depth - 1) for depth in depths]

    def _inputs(
        self, read: Read, states: Tensor
    ) -> Float[Tensor, "tokens layers hidden"]:
        """Return the states that the layers read beside each token.

        For committed tokens the first layer reads the target's; the others wait for the
        layer before them (`_shift`). Draft tokens have the states of their parent.
        """
        depth = self._head.depth
        if read.parents:
            states = states.unflatten(1, (depth, -1))
            return states if depth == 1 else states[:, [0, *range(depth - 1)]]
        states = states.to(self._dtype)
        rest = states.new_zeros(len(states), depth - 1, self._head.hidden)
        if read.past and read.id in self._ends:
            rest[0] = self._ends[read.id][:-1]
        return torch.cat([states[:, None], rest], 1)


def _shift(
    reads: Sequence[Read],
    states: Float[Tensor, "rows hidden"],
    following: Float[Tensor, "rows hidden"],
) -> None:
    """Write the states of a layer at committed tokens to the rows after them, where the
    next layer reads them.
    """
    start = 0
    for read in reads:
        stop = start + len(read.tokens)
        if not read.parents:
            following[start + 1 : stop] = states[start : stop - 1]
        start = stop
