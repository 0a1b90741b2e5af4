"""DFlash 2 (z-lab): a masked head with convolutions over its block around attention and
MLP, and a selector that scores each position's likeliest tokens by the token before.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from foreword.draft.heads.block import BlockDrafter
from foreword.draft.heads.masked import Layout, MaskedHead, entries
from foreword.draft.heads.masked_runtime import MaskedBlocks
from foreword.model import Model
from foreword.model.executors.torch.packed_linear import padded
from foreword.model.head_layers import Angles, Attend, Layer
from foreword.model.loading.checkpoint import Checkpoint
from foreword.registry import OWN_METHODS

Rows = Float[Tensor, "rows hidden"]


class Convolution(nn.Module):
    """Convolutions of a sublayer's input and output over the rows of their block; its
    input decides the kernels of both.
    """

    def __init__(
        self,
        hidden: int,
        taps: int,
        group: int,
        block: int,
    ) -> None:
        super().__init__()
        self._shape = (2, taps, hidden // group)
        self._group, self._block = group, block
        kernel = torch.zeros(2, taps, hidden, dtype=torch.float32)
        self.base_kernel = nn.Parameter(kernel)
        wide = 2 * taps * (hidden // group)
        self.kernel_projection = nn.Linear(hidden, wide, bias=False)

    def forward(self, x: Rows) -> tuple[Rows, Callable[[Rows], Rows]]:
        """Return the convolved input of a sublayer, and what convolves its output."""
        delta = self.kernel_projection(x).unflatten(-1, self._shape)
        delta = delta.repeat_interleave(self._group, -1)
        first, last = (self.base_kernel + delta).unbind(1)
        return self._over(first, x), partial(self._over, last)

    def _over(
        self,
        kernel: Float[Tensor, "rows taps hidden"],
        x: Rows,
    ) -> Rows:
        block = self._block
        blocks = x.unflatten(0, (-1, block))
        taps = [
            F.pad(blocks, (0, 0, tap, 0))[:, :block] for tap in range(kernel.shape[1])
        ]
        rows = torch.stack(taps, 2).flatten(0, 1)
        return (rows * kernel).sum(1)


class ConvolvedLayer(Layer):
    """A layer whose sublayers are convolved."""

    def __init__(self, layout: Layout, taps: int, group: int) -> None:
        super().__init__(layout.sizes)
        sizes = (layout.sizes.hidden_size, taps, group, layout.block)
        self.attention_conv = Convolution(*sizes)
        self.mlp_conv = Convolution(*sizes)

    def forward(
        self,
        number: int,
        x: Rows,
        angles: Angles,
        attend: Attend,
    ) -> Rows:
        normed = self.input_layernorm(x)
        inner, finish = self.attention_conv(normed)
        inner = self.self_attn(number, inner, angles, attend)
        x = x + finish(inner)
        normed = self.post_attention_layernorm(x)
        inner, finish = self.mlp_conv(normed)
        return x + finish(self.mlp(inner))


class Selector(nn.Module):
    """Low-rank scores of a token after another, given a row's hidden state."""

    def __init__(
        self,
        vocab: int,
        hidden: int,
        rank: int,
        top: int,
    ) -> None:
        super().__init__()
        self.rank, self.top = rank, min(top, vocab)
        table = torch.zeros(vocab, rank, dtype=torch.float32)
        self.predecessor_codebook = nn.Parameter(table)
        self.successor_codebook = nn.Parameter(table.clone())
        self.hidden_projection = nn.Linear(hidden, rank, bias=False)


class DFlash2Head(MaskedHead):
    """A masked head with convolutions and a selector."""

    METHOD = "dflash2"
    ARCHITECTURES = ("DFlash2DraftModel",)
    FIRST_ROW = False

    def __init__(
        self,
        layout: Layout,
        parts: Mapping[str, Any],
    ) -> None:
        """`parts`: the keys of its config."""
        super().__init__(layout)
        sizes = layout.sizes
        taps = parts["conv_kernel_size"]
        group = parts["conv_group_size"]
        self.layers = nn.ModuleList(
            ConvolvedLayer(layout, taps, group) for _ in range(sizes.num_hidden_layers)
        )
        self.candidate_selector = Selector(
            sizes.vocab_size,
            sizes.hidden_size,
            parts["selector_rank"],
            parts["selector_top_k"],
        )
        self.embedding_scale = float(parts.get("input_embedding_scale") or 1)
        self.logit_scale = float(parts.get("output_multiplier") or 1)
        self.logit_cap = float(parts.get("final_logit_softcapping") or 0)

    @classmethod
    def filled(
        cls,
        checkpoint: Checkpoint,
        layout: Layout,
    ) -> "DFlash2Head":
        parts = entries(checkpoint.config)
        return checkpoint.filled(partial(cls, layout, parts))


class DFlash2Blocks(MaskedBlocks):
    """Block predictor whose draft tokens depend on the one before, level by level.

    A row of a block is its logits, then what the selector reads of its hidden state.
    """

    def __init__(self, head: DFlash2Head, target: Model) -> None:
        self._scales = head.logit_scale, head.logit_cap
        self._selector = head.candidate_selector
        super().__init__(head, target)

    def _logits(self, hidden: Rows) -> Float[Tensor, "rows features"]:
        scale, cap = self._scales
        logits = super()._logits(hidden).float() * scale
        if cap > 0:
            logits = cap * (logits / cap).tanh()
        rows = padded(hidden.to(self.target.dtype))
        state = self._selector.hidden_projection(rows)
        state = state[: len(hidden)].float()
        return torch.cat([logits, state], -1)

    @torch.inference_mode()
    def after(
        self, distributions: Float[Tensor, "rows features"], tokens: Sequence[int]
    ) -> Float[Tensor, "rows vocab"]:
        """Return the logits of each row's candidates, with the selector's scores; all
        others are -inf.
        """
        selector = self._selector
        sides = [self.target.vocab, selector.rank]
        logits, state = distributions.split(sides, -1)
        best, ids = logits.topk(selector.top)
        before = torch.tensor(tokens, device=logits.device)
        before = selector.predecessor_codebook[before].float()
        after = selector.successor_codebook[ids].float()
        best = best + ((before * state)[:, None] * after).sum(-1)
        nothing = torch.full_like(logits, -torch.inf)
        return nothing.scatter(1, ids, best)


class DFlash2Drafter(BlockDrafter):
    """Drafter that grows trees from a block's candidates."""

    about = OWN_METHODS["dflash"]
    HEAD = DFlash2Head
    BLOCKS = DFlash2Blocks
