"""DSpark drafter and its checkpoints: a block plus a bigram table on the token before
(arXiv 2607.05147).

The head that fills in blocks is in masked.py; here are its bigram table and confidence
head.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.heads.block import BlockDrafter
from foreword.draft.heads.block_native import NativeBlockTrees, supports_native_trees
from foreword.draft.heads.loading import saved
from foreword.draft.heads.masked import VOCABULARY, Layout, MaskedHead, entries
from foreword.draft.heads.masked_runtime import MaskedBlocks
from foreword.errors import ModelError
from foreword.model import Model
from foreword.model.executors.native.layout import LANES
from foreword.model.executors.torch.packed_linear import MIN_ROWS, PackedLinear
from foreword.model.loading.checkpoint import Checkpoint
from foreword.registry import OWN_METHODS

VANILLA = "vanilla"
NEXT = "markov_head.markov_w2.weight"
"""Factor of the bigram table for the next token."""


class Markov(nn.Module):
    """Low-rank bigram table: logits of a token given the token before."""

    def __init__(self, vocab: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab, rank)
        self.markov_w2 = nn.Linear(rank, vocab, bias=False)

    def forward(
        self,
        tokens: Int[Tensor, "rows"],
    ) -> Float[Tensor, "rows vocab"]:
        return self.markov_w2(self.markov_w1(tokens))


class ConfidenceHead(nn.Module):
    """Linear layer from a hidden state to the log-odds of acceptance."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.proj = nn.Linear(features, 1)


class DSparkHead(MaskedHead):
    """A masked head with a bigram table and, if `assured`, a confidence head."""

    METHOD = "dspark"
    ARCHITECTURES = "Qwen3DSparkModel", "DSparkDraftModel"
    SPECULATOR = "DSparkSpeculator"
    FIRST_ROW = True
    EXTRAS = (
        "markov_rank",
        "markov_head_type",
        "enable_confidence_head",
        "confidence_head_with_markov",
    )

    def __init__(
        self,
        layout: Layout,
        rank: int,
        *,
        assured: bool = True,
        assured_by_token: bool = True,
    ) -> None:
        """`rank`: of the bigram table.

        `assured`: has a confidence head, `assured_by_token`: on the last token too.
        """
        super().__init__(layout)
        self.rank, self.assured_by_token = rank, assured_by_token
        hidden = layout.sizes.hidden_size
        self.markov_head = Markov(layout.sizes.vocab_size, rank)
        self.confidence_head = (
            ConfidenceHead(hidden + rank * assured_by_token) if assured else None
        )

    @property
    def extra_tensors(self) -> tuple[str, ...]:
        confidence = "confidence_head.proj.weight", "confidence_head.proj.bias"
        table = "markov_head.markov_w1.weight", NEXT
        return table if self.confidence_head is None else (*table, *confidence)

    def confidence(
        self,
        hidden: Float[Tensor, "rows hidden"],
        before: Int[Tensor, "rows"],
    ) -> Float[Tensor, "rows"] | None:
        """Return the log-odds that each row's draft token is accepted."""
        if self.confidence_head is None:
            return None
        features = (
            [hidden, self.markov_head.markov_w1(before)]
            if self.assured_by_token
            else [hidden]
        )
        return self.confidence_head.proj(torch.cat(features, -1)).squeeze(-1)

    @classmethod
    def filled(cls, checkpoint: Checkpoint, layout: Layout) -> "DSparkHead":
        config = entries(checkpoint.config)
        rank, kind = config.get("markov_rank"), config.get("markov_head_type", VANILLA)
        if not isinstance(rank, int) or rank < 1 or kind != VANILLA:
            raise ModelError(
                f"cannot load {checkpoint.source}: its Markov head is {kind} of rank "
                f"{rank}. Choose a head with a {VANILLA} Markov head of rank 1 or more"
            )
        checkpoint.check_sides(
            {"markov_rank": rank, "vocab_size": layout.sizes.vocab_size}
        )
        assured = bool(config.get("enable_confidence_head", False))
        assured_by_token = bool(config.get("confidence_head_with_markov", True))
        make = partial(
            cls, layout, rank, assured=assured, assured_by_token=assured_by_token
        )
        return _over_target_vocab(checkpoint, layout).filled(make)

    def dump(self, dtype: torch.dtype) -> Checkpoint:
        """Return the head in the flat layout."""
        config = {
            "architectures": [self.ARCHITECTURES[0]],
            **self.layout.as_config(),
            "mask_token_id": self.layout.mask,
            "target_layer_ids": self.layout.outputs,
            "sample_from_anchor": self.layout.sample_from_anchor,
            "markov_rank": self.rank,
            "markov_head_type": VANILLA,
            "enable_confidence_head": self.confidence_head is not None,
            "confidence_head_with_markov": self.assured_by_token,
        }
        head = saved(self, config, dtype)
        if not self.layout.draft_vocab:
            return head
        rows = head.tensors[NEXT][self.tokens.to("cpu")]
        return replace(head, tensors={**head.tensors, NEXT: rows})


def _over_target_vocab(
    checkpoint: Checkpoint,
    layout: Layout,
) -> Checkpoint:
    """Return a checkpoint whose bigram table has a row for each of the target's tokens;
    tokens outside a reduced vocabulary get zeros, and are never drafted.
    """
    table, offsets = (checkpoint.tensors.get(name) for name in (NEXT, VOCABULARY[0]))
    vocab, reduced = layout.sizes.vocab_size, layout.draft_vocab
    if not reduced or table is None or offsets is None or table.shape[0] != reduced:
        return checkpoint
    tokens = (torch.arange(reduced) + offsets).clamp(0, vocab - 1)
    whole = table.new_zeros(vocab, *table.shape[1:]).index_copy_(0, tokens, table)
    return replace(checkpoint, tensors={**checkpoint.tensors, NEXT: whole})


class DSparkBlocks(MaskedBlocks):
    """Block predictor whose draft tokens depend on the one before, level by level."""

    def __init__(
        self,
        head: DSparkHead,
        target: Model,
    ) -> None:
        super().__init__(head, target)
        self._markov = table = head.markov_head
        fits = target.dtype == torch.bfloat16 and head.rank % LANES == 0
        if fits and supports_native_trees(target):
            last = table.markov_w2
            weight = last.dense if isinstance(last, PackedLinear) else last.weight
            tables = (table.markov_w1.weight, weight)
            self._grower = NativeBlockTrees(target.vocab, tables)
            del table.markov_w2  # the grower holds the only, packed copy

    @torch.inference_mode()
    def after(
        self,
        distributions: Float[Tensor, "rows vocab"],
        tokens: Sequence[int],
    ) -> Float[Tensor, "rows vocab"]:
        if self._grower is not None:
            return distributions + self._grower.logits(tokens)
        short = max(0, MIN_ROWS - len(tokens))
        padded = torch.tensor([*tokens, *[0] * short], device=distributions.device)
        return distributions + self._markov(padded)[: len(tokens)]


class DSparkDrafter(BlockDrafter):
    """Drafter that grows trees from a block's distributions, with one cheap matrix
    product per level.
    """

    about = OWN_METHODS["dspark"]
    HEAD = DSparkHead
    BLOCKS = DSparkBlocks
