"""Training of a draft model to predict several tokens in one forward (PARD, arXiv
2504.18583, section 3).

Mask rows stand after every place of a text. Deeper ones are dropped for most places
(conditional drop-token), so that a forward has about three rows a token.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from foreword import bundled
from foreword.checks import whole
from foreword.draft.heads.export_layout import VLLM, ExportLayout, vllm
from foreword.draft.pard import mask_token, named_mask
from foreword.errors import InvalidRequest
from foreword.model import HFModel
from foreword.model.executors.torch.hooks import own_logits
from foreword.model.head_layers import HFConfig
from foreword.model.loading.checkpoint import Checkpoint
from foreword.model.loading.hub import MASK_TOKENS
from foreword_train.data.packing import Block
from foreword_train.data.pairs import forward_inputs
from foreword_train.methods.ahead import Anchors, BlockTask, pick
from foreword_train.methods.lm import check_draft, copied, given_model, write
from foreword_train.methods.masked import mask_of
from foreword_train.registry import PardOptions
from foreword_train.task import TargetOutputs, TrainContext

MEASURED = 64
"""Places. Most per block that a measurement reads, with masks of every depth."""
SERVED = 8
"""Draft tokens of a round in another engine, which has one number for all rounds."""


Rows = Int[Tensor, "batch rows"]


@dataclass(frozen=True, slots=True)
class MaskRows:
    """Mask rows of blocks, after the rows of the text; unused ones come last."""

    places: Rows
    """Index of the last known token; -1 in an unused row."""
    depths: Rows
    """1 for the first mask after it."""
    of: Int[Tensor, "batch anchors draft_tokens"]
    """Row of the forward that predicts each token after an anchor, where valid."""

    @classmethod
    def after(cls, anchors: Anchors, length: int) -> "MaskRows":
        """Return a row for each valid token after the first one, which the text's own
        row predicts; `length` = rows of the text.
        """
        places = anchors.places
        valid = anchors.valid[..., 1:]
        flat = valid.flatten(1)
        order = (flat.cumsum(1) - 1).view_as(valid)
        count = int(flat.sum(1).max())
        batch, anchor, depth = valid.nonzero(as_tuple=True)
        row = order[batch, anchor, depth]
        origins = places.new_full((len(valid), count), -1)
        origins[batch, row] = places[batch, anchor]
        depths = torch.zeros_like(origins)
        depths[batch, row] = depth + 1
        later = torch.where(valid, order + length, 0)
        of = torch.cat([places[..., None], later], -1)
        return cls(origins, depths, of)

    def positions(self, block: Block) -> Rows:
        """Return the positions of the text's rows, then of these."""
        text = block.positions
        first = text.gather(1, self.places.clamp(min=0))
        return torch.cat([text, first + self.depths], 1)

    def seen(self, block: Block) -> Bool[Tensor, "batch rows rows"]:
        """Mask what each row attends to: the text of its record up to its place, and
        masks after the same place up to its own depth.
        """
        record = (block.positions == 0).cumsum(1)
        index = torch.arange(record.shape[1], device=record.device)
        text = index.expand_as(record)
        places = torch.cat([text, self.places], 1)
        theirs = record.gather(1, self.places.clamp(min=0))
        records = torch.cat([record, theirs], 1)
        depths = torch.cat([torch.zeros_like(text), self.depths], 1)
        before = text[:, None] <= places[..., None]
        same = record[:, None] == records[..., None]
        chain = self.places[:, None] == places[..., None]
        above = self.depths[:, None] <= depths[..., None]
        return torch.cat([before & same, chain & above], -1)


class MaskedReader(nn.Module):
    """A draft model over rows that each attend to rows of their own."""

    def __init__(self, draft: HFModel) -> None:
        super().__init__()
        self.draft = draft

    def forward(
        self, tokens: Rows, positions: Rows, seen: Bool[Tensor, "batch rows rows"]
    ) -> Float[Tensor, "batch rows hidden"]:
        """Return the hidden states after the final norm."""
        outputs = self.draft.base_model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=seen[:, None],
            use_cache=False,
        )
        return outputs.last_hidden_state


class MaskTraining(BlockTask):
    """Task of a draft model that predicts the target's distributions at every place and
    at masks after it.
    """

    def __init__(self, context: TrainContext, options: PardOptions) -> None:
        """Raises InvalidRequest or ModelError if options and models do not fit."""
        _check(options)
        draft = _draft(context, options)
        super().__init__(
            context,
            MaskedReader(draft),
            states=(),
            draft_tokens=options.depth,
            anchors=MEASURED,
            # deeper rows weigh less because they are fewer
            decay=math.inf,
        )
        self.draft = draft
        self.mask = _mask(context, options, draft)
        # the keys by which engines know such a model
        setattr(draft.config, MASK_TOKENS[0], self.mask)
        draft.config.spd_type = options.method
        self._tokenizer = context.tokenizer
        depths = torch.arange(options.depth)
        shares = options.keep**depths
        # every place predicts the next token
        shares[1:] = shares[1:].clamp(min=options.least)
        self._shares = shares
        self._vocab = min(map(_vocab, (self.target, draft)))

    def save(self, folder: Path) -> None:
        """Write the draft as transformers does, with its mask token in the config."""
        write(self.draft, folder, self.target, self._tokenizer)

    def anchors(self, block: Block, *, spread: bool) -> Anchors:
        """Choose every place of the text; the shares of them that each depth keeps are
        drawn anew. A measurement has fewer places, and every depth.
        """
        if spread:
            return super().anchors(block, spread=True)
        drawn = pick(block, block.tokens.shape[1], self.draft_tokens, spread=False)
        valid = drawn.valid
        # the chosen places come first, in random order
        order = torch.arange(valid.shape[1], device=valid.device)
        places = valid[..., 0].sum(1)[:, None]
        counts = (places * self._shares.to(places.device)).ceil()
        inside = order[:, None] < counts[:, None]
        return replace(drawn, valid=valid & inside)

    @torch.no_grad()
    def read_target(
        self, block: Block, states: tuple[int, ...]
    ) -> tuple[Block, TargetOutputs]:
        """Return the blocks, and the target's logits in the vocabulary of both."""
        del states
        read, texts = forward_inputs(block, self._start)
        logits = self.target(**read).logits
        common = logits[..., : self._vocab]
        none = common[..., :0]
        return texts, TargetOutputs(none, common)

    def hidden(
        self, module: nn.Module, block: Block, outputs: TargetOutputs, anchors: Anchors
    ) -> Float[Tensor, "batch anchors draft_tokens hidden"]:
        del outputs
        length = block.tokens.shape[1]
        rows = MaskRows.after(anchors, length)
        masks = torch.full_like(rows.places, self.mask)
        hidden = module(
            torch.cat([block.tokens, masks], 1), rows.positions(block), rows.seen(block)
        )
        size = hidden.shape[-1]
        index = rows.of.flatten(1)[..., None]
        states = hidden.gather(1, index.expand(-1, -1, size))
        return states.unflatten(1, rows.of.shape[1:])

    def distributions(
        self,
        hidden: Float[Tensor, "valid hidden"],
        before: Int[Tensor, "valid"],
        depth: Int[Tensor, "valid"],
    ) -> Float[Tensor, "valid vocab"]:
        del before, depth
        logits = own_logits(self.draft, hidden)
        return logits[:, : self._vocab]


def pack(checkpoint: Checkpoint, target: HFConfig, engine: str) -> ExportLayout:
    """Return a layout that copies the model with its tokenizer. Raises InvalidRequest
    for an engine that predicts one token in a forward.
    """
    command = vllm("draft_model", SERVED, parallel_drafting=True)
    start = {VLLM: command}
    return copied(checkpoint, target, engine, start)


def _vocab(model: HFModel) -> int:
    return model.config.get_text_config().vocab_size


def _check(options: PardOptions) -> None:
    whole(1)("depth", options.depth)
    keep, least = options.keep, options.least
    if not 0 < keep <= 1 or not 0 <= least <= 1:
        raise InvalidRequest(
            f"cannot train with keep {keep} and least {least}: 'keep' must be above 0 "
            "and at most 1, 'least' between 0 and 1"
        )


def _draft(context: TrainContext, options: PardOptions) -> HFModel:
    source = options.draft
    is_bundled = bundled.is_target(context.source)
    if source is None and is_bundled:
        source = bundled.draft()
    if source is None:
        raise InvalidRequest(
            f"cannot train a draft model for {context.source}: there is none to begin "
            "from. Give 'draft', a folder or hub id"
        )
    draft = given_model(context, source)
    check_draft(context, draft)
    config = draft.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if window is not None and context.length > window:
        raise InvalidRequest(
            f"cannot train on blocks of {context.length} tokens: {source} attends to "
            f"the last {window}. Lower 'length'"
        )
    return draft


def _mask(context: TrainContext, options: PardOptions, draft: HFModel) -> int:
    """Return the given mask token, the draft's own, an id that the tokenizer does not
    use, or its padding.
    """
    vocab = _vocab(draft)
    mask = options.mask
    if mask is None and named_mask(draft) is not None:
        mask = mask_token(draft)
    if mask is None and context.tokenizer is not None:
        used = context.tokenizer.get_vocab().values()
        last = max(used)
        mask = last + 1 if last + 1 < vocab else None
    if mask is None:
        mask = mask_of(context)
    if not 0 <= mask < vocab:
        raise InvalidRequest(
            f"cannot train with mask {mask}: the draft model has {vocab} tokens. Give "
            "'mask', the id of one of them"
        )
    return mask
