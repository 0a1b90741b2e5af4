"""A block of tokens from one forward of a head, each bettered by the token before it (DSpark, arXiv 2607.05147).

Knows the checkpoints of the method and its two small extra parts; the head that fills in blocks is in masked.py.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.base import Source
from foreword.draft.block import BlockDrafter, fitting, folder
from foreword.draft.block_native import Bed
from foreword.draft.masked import Layout, MaskedHead, fill, packed
from foreword.draft.masked_blocks import MaskedBlocks
from foreword.draft.parcel import SPECULATORS, Parcel, unserved
from foreword.errors import ModelError
from foreword.model import Model, Tokenizer
from foreword.model.checkpoint import Checkpoint
from foreword.model.linear import MIN_ROWS, PackedLinear
from foreword.model.panels import LANES
from foreword.model.parts import HFConfig

ARCHITECTURES, METHOD = ("Qwen3DSparkModel", "DSparkDraftModel"), "dspark"
"""What configs call it: alone, and in the layout of speculators."""
VANILLA = "vanilla"
EXTRAS = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
"""What configs say of its two small parts."""


class Markov(nn.Module):
    """What the token before says of a token, through a few numbers: a bigram table of low rank."""

    def __init__(self, vocab: int, rank: int) -> None:
        super().__init__()
        self.markov_w1, self.markov_w2 = nn.Embedding(vocab, rank), nn.Linear(rank, vocab, bias=False)

    def forward(self, tokens: Int[Tensor, "rows"]) -> Float[Tensor, "rows vocab"]:
        return self.markov_w2(self.markov_w1(tokens))


class Assurance(nn.Module):
    """How likely it is that the guess after a token is kept, from what the head thinks there."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.proj = nn.Linear(features, 1)


class DSparkHead(MaskedHead):
    """A head whose laws are bettered by the token before, with a part that says how good they are."""

    def __init__(self, layout: Layout, rank: int, *, assured: bool = True, assured_by_token: bool = True) -> None:
        """`rank` of the bigram table. `assured`: it has a confidence head, which may see the token before too."""
        super().__init__(layout)
        self.rank, self.assured_by_token = rank, assured_by_token
        hidden = layout.sizes.hidden_size
        self.markov_head = Markov(layout.sizes.vocab_size, rank)
        self.confidence_head = Assurance(hidden + rank * assured_by_token) if assured else None

    def confidence(
        self, hidden: Float[Tensor, "rows hidden"], before: Int[Tensor, "rows"]
    ) -> Float[Tensor, "rows"] | None:
        """Log-odds that the guess in a row is kept. It looks at the token before, never at the guess."""
        if self.confidence_head is None:
            return None
        known = [hidden, self.markov_head.markov_w1(before)] if self.assured_by_token else [hidden]
        return self.confidence_head.proj(torch.cat(known, -1)).squeeze(-1)

    @classmethod
    def read(cls, found: Checkpoint) -> DSparkHead:
        """From a checkpoint, flat or of speculators. Raises ModelError for another kind, or where a part is missing."""
        config = found.config
        kinds = [*(config.get("architectures") or ()), config.get("speculators_model_type")]
        if not {*ARCHITECTURES, METHOD} & set(kinds):
            raise ModelError(f"{found.source} does not hold a {ARCHITECTURES[0]}, but {kinds}")
        rank, kind = config.get("markov_rank"), config.get("markov_head_type", VANILLA)
        if not isinstance(rank, int) or rank < 1 or kind != VANILLA:
            raise ModelError(
                f"{found.source}: only {VANILLA} Markov heads of some rank can be read, got {kind}, {rank}"
            )
        head = cls(
            Layout.of(config, found.source, anchored=True),
            rank,
            assured=bool(config.get("enable_confidence_head", False)),
            assured_by_token=bool(config.get("confidence_head_with_markov", True)),
        )
        fill(head, found)
        return head

    def dump(self, dtype: torch.dtype) -> Checkpoint:
        """The head in the flat layout."""
        config = {
            "architectures": [ARCHITECTURES[0]],
            **self.layout.as_config(),
            "mask_token_id": self.layout.mask,
            "target_layer_ids": self.layout.outputs,
            "sample_from_anchor": self.layout.anchored,
            "markov_rank": self.rank,
            "markov_head_type": VANILLA,
            "enable_confidence_head": self.confidence_head is not None,
            "confidence_head_with_markov": self.assured_by_token,
            "dtype": str(dtype).removeprefix("torch."),
        }
        tensors = {name: tensor.detach().to("cpu", dtype) for name, tensor in self.state_dict().items()}
        return Checkpoint("", config, tensors)


def pack(found: Checkpoint, target: HFConfig, engine: str) -> Parcel:
    """A head for another engine. Raises ModelError for another target's, InvalidRequest for what it does not know."""
    head = DSparkHead.read(found)
    if not head.layout.anchored and engine != SPECULATORS:
        raise unserved(f"a head whose first row says nothing ({found.source})", engine, (SPECULATORS,))
    flat = replace(head.dump(found.tensors["fc.weight"].dtype), source=found.source)
    about = {"architectures": ["DSparkSpeculator"], "speculators_model_type": METHOD}
    about |= {name: flat.config[name] for name in EXTRAS}
    own = ["markov_head.markov_w1.weight", "markov_head.markov_w2.weight"]
    own += ["confidence_head.proj.weight", "confidence_head.proj.bias"] if head.confidence_head is not None else []
    return packed(head, flat, about, target, engine, own)


class DSparkBlocks(MaskedBlocks):
    """Blocks in which a guess follows from the one before it: read level by level."""

    def __init__(self, head: DSparkHead, target: Model) -> None:
        super().__init__(head, target)
        self._markov = head.markov_head

    def bed(self, head: nn.Module) -> Bed | None:
        if not isinstance(head, DSparkHead) or self.target.dtype != torch.bfloat16 or head.rank % LANES:
            return None
        table = head.markov_head
        last = table.markov_w2
        made = Bed(
            self.target.vocab, (table.markov_w1.weight, last.dense if isinstance(last, PackedLinear) else last.weight)
        )
        del table.markov_w2  # held packed, and there alone
        return made

    @torch.inference_mode()
    def after(self, laws: Float[Tensor, "rows vocab"], tokens: List[int]) -> Float[Tensor, "rows vocab"]:
        if self._bed is not None:
            return laws + self._bed.say(tokens)
        short = max(0, MIN_ROWS - len(tokens))
        known = torch.tensor([*tokens, *[0] * short], device=laws.device)
        return laws + self._markov(known)[: len(tokens)]


class DSparkDrafter(BlockDrafter):
    """Grows trees from a block's laws, a cheap product for each level."""

    summary = "a diffusion head foresees a block of tokens, a small table makes them follow on each other"

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> DSparkDrafter:
        del tokenizer  # a head has none of its own
        head = DSparkHead.read(folder(source))
        fitting(str(source), target.hf.config, vocab=head.layout.sizes.vocab_size, hidden=head.layout.sizes.hidden_size)
        blocks = DSparkBlocks(head, target)
        blocks.lighten()
        return cls(blocks, head.layout.states)
