"""Medusa heads and their drafter: heads on the target's last hidden state, one per
position (arXiv 2401.10774).
"""

import re
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import TypeGuard, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.heads.block import BlockDrafter, BlockRequest, HeadBlocks
from foreword.draft.heads.loading import TrainedHead, saved
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.model.executors.torch.packed_linear import padded, swap_in
from foreword.model.layers import layer_count
from foreword.model.loading.checkpoint import Checkpoint
from foreword.registry import OWN_METHODS

ARCHITECTURE = "MedusaModel"
PREFIX = re.compile(r"^medusa_heads?\.")
BLOCK = re.compile(r"^blocks\.(\d+)\.layers\.(\d+)\.")
OUTPUT = re.compile(r"^lm_heads\.(\d+)\.")
"""Names of vLLM's `MedusaModel`: a linear layer of a head, and its LM head."""


class Residual(nn.Module):
    """x + SiLU(W x + b), initialized to the identity."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(
        self,
        x: Float[Tensor, "rows hidden"],
    ) -> Float[Tensor, "rows hidden"]:
        return x + F.silu(self.linear(x))


class MedusaHeads(TrainedHead, nn.ModuleList):
    """Heads on the target's last hidden state: head k predicts the token k + 2
    positions after its input; the target predicts the next one.

    Tensor names are as in the original: `k.0.linear.weight`, and `k.1.weight` where
    heads have their own LM heads. Otherwise all heads share the target's LM head.
    """

    def __init__(
        self,
        heads: int,
        layers: int,
        hidden: int,
        vocab: int,
        *,
        own: bool,
    ) -> None:
        def head() -> nn.Sequential:
            last = [nn.Linear(hidden, vocab, bias=False)] if own else []
            return nn.Sequential(*(Residual(hidden) for _ in range(layers)), *last)

        super().__init__(head() for _ in range(heads))
        self.depth = layers
        self.hidden_size = hidden
        self.vocab = vocab
        self.own = own

    def forward(
        self, x: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows heads hidden"]:
        """Return each head's hidden states, from normed hidden states of the target."""
        states = []
        for head in self._heads:
            hidden = x
            # without the LM head that may come last
            for layer in islice(head, self.depth):
                hidden = layer(hidden)
            states.append(hidden)
        return torch.stack(states, 1)

    def logits(
        self,
        hidden: Float[Tensor, "rows hidden"],
        head: Int[Tensor, "rows"],
    ) -> Float[Tensor, "rows vocab"]:
        """Return logits of the heads' LM heads; row i is a hidden state of head[i]."""
        rows_of = [(head == number).nonzero().flatten() for number in range(len(self))]
        logits = [
            layers[-1](hidden[rows])
            for layers, rows in zip(self._heads, rows_of, strict=True)
        ]
        return torch.cat(logits)[torch.cat(rows_of).argsort()]

    @property
    def _heads(self) -> Sequence[nn.Sequential]:
        return cast("Sequence[nn.Sequential]", list(self))

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> "MedusaHeads":
        """Load from a checkpoint, or raise ModelError for another kind or a gap."""
        checkpoint = _renamed(checkpoint)
        config, first = checkpoint.config, checkpoint.tensors.get("0.0.linear.weight")
        heads = config.get("medusa_num_heads")
        layers = config.get("medusa_num_layers", 1)
        if (
            not isinstance(heads, int)
            or not isinstance(layers, int)
            or min(heads, layers) < 1
            or not _is_matrix(first)
        ):
            raise ModelError(
                f"cannot load {checkpoint.source} as {ARCHITECTURE}: medusa_num_heads "
                "in config.json or the tensor 0.0.linear.weight is missing, or not a "
                "matrix. Choose Medusa heads"
            )
        several = "medusa_num_heads * medusa_num_layers"  # each is a matrix and a bias
        checkpoint.check_most(
            several,
            heads * layers,
            len(checkpoint.tensors),
            "the number of its tensors",
        )
        last = checkpoint.tensors.get(f"0.{layers}.weight")
        vocab = last.shape[0] if _is_matrix(last) else config.get("vocab_size")
        if not isinstance(vocab, int):
            raise ModelError(
                f"cannot load {checkpoint.source}: config.json has no vocab_size. Add "
                "it"
            )
        return checkpoint.filled(
            partial(cls, heads, layers, first.shape[0], vocab, own=last is not None)
        )

    def dump(self, dtype: torch.dtype) -> Checkpoint:
        """Return the heads as a checkpoint in the original's layout."""
        config = {
            "architectures": [ARCHITECTURE],
            "medusa_num_heads": len(self),
            "medusa_num_layers": self.depth,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab,
        }
        return saved(self, config, dtype)


def _renamed(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint under the original's names; vLLM had others.

    Raises ModelError where heads know a part of the vocabulary only.
    """
    config = dict(checkpoint.config)
    tensors = {
        PREFIX.sub("", name): tensor for name, tensor in checkpoint.tensors.items()
    }
    if not any(name.startswith("blocks.") for name in tensors):
        return Checkpoint(checkpoint.source, config, tensors)
    vocab = config.get("vocab_size")
    if "token_map" in tensors or config.get("truncated_vocab_size", vocab) != vocab:
        raise ModelError(
            f"cannot load {checkpoint.source}: its heads know a part of "
            "the vocabulary (truncated_vocab_size), which is not supported. "
            "Choose heads for the whole vocabulary"
        )
    layers = config.get("num_hidden_layers", 1)
    config["medusa_num_heads"] = config.get("num_heads")
    config["medusa_num_layers"] = layers
    shared = ("lm_head.", "lm_heads.") if config.get("original_lm_head") else ()
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith(shared):
            continue  # a copy of the target's LM head
        ours = BLOCK.sub(r"\1.\2.linear.", name)
        renamed[OUTPUT.sub(rf"\1.{layers}.", ours)] = tensor
    for name in [name for name in renamed if name.endswith(".linear.weight")]:
        weight = renamed[name]
        zeros = torch.zeros(len(weight), dtype=weight.dtype)
        renamed.setdefault(name.replace(".weight", ".bias"), zeros)
    return Checkpoint(checkpoint.source, config, renamed)


def _is_matrix(tensor: Tensor | None) -> TypeGuard[Tensor]:
    return tensor is not None and tensor.dim() == 2


class MedusaBlocks(HeadBlocks):
    """Block predictor that applies the heads to the state of the last token that the
    target has read.
    """

    def __init__(self, heads: MedusaHeads, target: Model) -> None:
        super().__init__(heads, target, len(heads))
        swap_in(heads)
        self._heads, self._dtype = heads, target.dtype
        self.hidden_layers = (layer_count(target.hf.config),)
        self._last: dict[int, Float[Tensor, "hidden"]] = {}

    def close(self, id: int) -> None:
        super().close(id)
        self._last.pop(id, None)

    @torch.inference_mode()
    def compute(
        self, pending: Sequence[BlockRequest]
    ) -> Float[Tensor, "pending draft_tokens vocab"]:
        for request in pending:
            if len(request.states):
                self._last[request.id] = request.states[-1]
        last = [self._last[request.id] for request in pending]
        states = torch.stack(last).to(self._dtype)
        rows = padded(states)
        hidden = self._heads(rows).flatten(0, 1)
        if self._heads.own:
            heads = torch.arange(self.draft_tokens, device=hidden.device)
            logits = self._heads.logits(hidden, heads.repeat(len(rows)))
        else:
            logits = self.target.lm_head(hidden)
        return logits.unflatten(0, (len(rows), -1))[: len(pending)].float()

    def ahead(self, read: Read) -> Float[Tensor, "draft_tokens vocab"]:
        return self.block(read.id)


class MedusaDrafter(BlockDrafter):
    """Drafter that grows trees from the heads' distributions."""

    about = OWN_METHODS["medusa"]
    HEAD = MedusaHeads
    BLOCKS = MedusaBlocks
