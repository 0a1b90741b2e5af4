"""Training of heads that fill in blocks of masked tokens, from hidden states of a
frozen target (arXiv 2602.06036).
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from foreword.draft import default_method, method
from foreword.draft.heads.export_layout import ExportLayout
from foreword.draft.heads.loading import check_fits, head_dtype
from foreword.draft.heads.masked import MOST_ROWS, Layout, MaskedHead
from foreword.errors import InvalidRequest
from foreword.model import HFModel
from foreword.model.architectures import head_dim, inner_size, kv_heads
from foreword.model.head_layers import HFConfig, Qwen3Config
from foreword.model.layers import layers_of
from foreword.model.loading.checkpoint import Checkpoint
from foreword_train.data.packing import Block
from foreword_train.gguf.drafts import command, head_layout
from foreword_train.methods.ahead import Anchors, BlockTask
from foreword_train.registry import DFlashOptions, MaskedBlock
from foreword_train.task import TargetOutputs, TrainContext, seeded


class MaskedHeadModule(nn.Module):
    """A head over many blocks at once; each attends to its context and itself."""

    def __init__(self, head: MaskedHead) -> None:
        super().__init__()
        self.head = head

    def forward(
        self,
        states: Float[Tensor, "batch length features"],
        positions: Int[Tensor, "batch length"],
        rows: Float[Tensor, "batch rows hidden"],
        places: Int[Tensor, "batch rows"],
        seen: Bool[Tensor, "batch rows keys"],
    ) -> Float[Tensor, "batch rows hidden"]:
        """`seen` masks by row: context tokens, then rows that it may attend to."""
        batch = len(states)

        def apart(rows: Tensor) -> Tensor:
            """Give each element of the batch its own rows."""
            return rows.unflatten(0, (batch, -1))

        remembered = self.head.remembered(states.flatten(0, 1), positions.flatten())

        def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            held = [
                torch.cat([apart(old), apart(new)], 1).transpose(1, 2)
                for old, new in zip(remembered[number], (key, value), strict=True)
            ]
            out = F.scaled_dot_product_attention(
                apart(query).transpose(1, 2),
                *held,
                attn_mask=seen[:, None],
                enable_gqa=True,
            )
            return out.transpose(1, 2).flatten(0, 1)

        return apart(self.head(rows.flatten(0, 1), places.flatten(), attend))


class MaskedBlockTask(BlockTask):
    """Task of a head that fills in masks after random anchors."""

    def __init__(
        self, context: TrainContext, head: MaskedHead, *, anchors: int, decay: float
    ) -> None:
        self.head = head
        self.layout = head.layout
        super().__init__(
            context,
            MaskedHeadModule(head),
            states=self.layout.states,
            draft_tokens=self.layout.draft_tokens,
            anchors=anchors,
            decay=decay,
        )

    def save(self, folder: Path) -> None:
        self.head.dump(self.target.dtype).write(folder)

    def hidden(
        self, module: nn.Module, block: Block, outputs: TargetOutputs, anchors: Anchors
    ) -> Float[Tensor, "batch anchors draft_tokens hidden"]:
        count, rows = anchors.places.shape[1], self.layout.block
        last = block.tokens.gather(1, anchors.places)[..., None]
        tokens = torch.cat(
            [last, last.new_full((*last.shape[:2], rows - 1), self.layout.mask)], -1
        )
        first = block.positions.gather(1, anchors.places)
        places = (first[..., None] + torch.arange(rows, device=first.device)).flatten(1)
        seen = _seen(block, anchors.places, rows)
        x = self.target.get_input_embeddings()(tokens.flatten(1)).float()
        hidden = module(outputs.states.float(), block.positions, x, places, seen)
        return hidden.unflatten(1, (count, rows))[:, :, rows - self.draft_tokens :]


def _seen(
    block: Block, anchors: Int[Tensor, "batch anchors"], rows: int
) -> Bool[Tensor, "batch rows keys"]:
    """Mask of the tokens before the anchor in its record, and of its block's rows."""
    length, count = block.tokens.shape[1], anchors.shape[1]
    piece = (block.positions == 0).cumsum(1)
    index = torch.arange(length, device=anchors.device)
    text = (piece[:, None] == piece.gather(1, anchors)[..., None]) & (
        index < anchors[..., None]
    )
    mask = (
        torch.eye(count, dtype=torch.bool, device=anchors.device)
        .repeat_interleave(rows, 0)
        .repeat_interleave(rows, 1)
    )
    return torch.cat(
        [text.repeat_interleave(rows, 1), mask.expand(len(anchors), -1, -1)], -1
    )


Head = TypeVar("Head", bound=MaskedHead)


def trainable(head: Head, source: str | Path) -> Head:
    """Return a read head, float32, or InvalidRequest for a reduced vocabulary or layers
    that do not attend to all.
    """
    reason = "a reduced vocabulary" if head.layout.draft_vocab else ""
    if not head.layout.reach.ordinary:
        reason = "sliding or causal layers"
    if reason:
        raise InvalidRequest(
            f"cannot train on from {source}: it has {reason}, which training does not "
            "support. Begin a new one without --draft"
        )
    return head.float()


def new_head(
    context: TrainContext,
    options: MaskedBlock,
    make: Callable[[Layout], Head],
    *,
    sample_from_anchor: bool,
) -> Head:
    """Return a head with layers of the target's sizes, begun as its last ones; its
    other weights depend on the seed alone.
    """
    mask = mask_of(context) if options.mask is None else options.mask
    layout = new_layout(
        context.target,
        layers=options.layers,
        block=options.block,
        mask=mask,
        sample_from_anchor=sample_from_anchor,
    )
    head = seeded(context.seed, lambda: make(layout))
    begin_as(head, context.target)
    return head


def new_layout(
    target: HFModel, *, layers: int, block: int, mask: int, sample_from_anchor: bool
) -> Layout:
    """Return a layout with layers of the target's sizes that reads as many target
    hidden states, low to high.

    Raises InvalidRequest for a block of too few or too many rows, or a mask that is not
    a token.
    """
    config = target.config.get_text_config()
    depth, vocab = config.num_hidden_layers, config.vocab_size
    if layers < 1 or not 2 <= block <= MOST_ROWS or not 0 <= mask < vocab:
        raise InvalidRequest(
            f"cannot create a head with {layers} layers, a block of {block} rows and "
            f"mask {mask}: "
            f"'layers' must be 1 or more, 'block' between 2 and {MOST_ROWS}, and "
            f"'mask' below {vocab}"
        )
    names = "hidden_size num_attention_heads vocab_size max_position_embeddings"
    sizes = {name: getattr(config, name) for name in names.split()}
    sizes["intermediate_size"] = inner_size(config)
    sizes["head_dim"] = head_dim(config)
    sizes["num_key_value_heads"] = kv_heads(config)
    rope = dict(
        getattr(config, "rope_parameters", None)
        or {"rope_type": "default", "rope_theta": 10_000.0}
    )
    norm = getattr(config, "rms_norm_eps", 1e-6)
    head = Qwen3Config(
        **sizes, num_hidden_layers=layers, rms_norm_eps=norm, rope_parameters=rope
    )
    return Layout(
        head, target_layers(depth, layers), block, mask, sample_from_anchor, depth
    )


@torch.no_grad()
def begin_as(head: MaskedHead, target: HFModel) -> None:
    """Copy the target's last layers into the head where shapes match: they already fit
    the target's LM head.
    """
    theirs = list(layers_of(target))[-len(head.layers) :]
    last = {
        name: tensor
        for name, tensor in target.base_model.named_parameters()
        if name == "norm.weight"
    }
    for ours, source in [
        *zip(head.layers, (layer.state_dict() for layer in theirs), strict=False),
        (head, last),
    ]:
        state = ours.state_dict()
        fits = {
            name: t.float()
            for name, t in source.items()
            if name in state and t.shape == state[name].shape
        }
        ours.load_state_dict(fits, strict=False)


def target_layers(depth: int, count: int) -> tuple[int, ...]:
    """Choose hidden states evenly from after the second layer to three before the last
    (or the middle one alone).
    """
    last = max(1, depth - 3)
    outputs = (
        [round(1 + place * (last - 1) / (count - 1)) for place in range(count)]
        if count > 1
        else [depth // 2]
    )
    return tuple(sorted({min(output + 1, depth) for output in outputs}))


def mask_of(context: TrainContext) -> int:
    """Return the mask token, else padding or end of text: none precedes another."""
    ids = (
        getattr(context.tokenizer, name, None)
        for name in ("mask_token_id", "pad_token_id")
    )
    candidates = (*ids, *sorted(context.eos))
    return next((int(token) for token in candidates if isinstance(token, int)), 0)


def pack_gguf(checkpoint: Checkpoint, target: HFConfig, _: str) -> ExportLayout:
    """Return a head for llama.cpp; raises as `head_layout` does, and ModelError where
    it is for another target.
    """
    kind = cast("Any", method(default_method(checkpoint.source))).HEAD
    head: MaskedHead = kind.read(checkpoint)
    layout, anchored = head.layout, head.layout.sample_from_anchor
    check_fits(checkpoint.source, head, target)
    flat = head.dump(head_dtype(checkpoint))
    sure = any(name.startswith("confidence_head") for name in flat.tensors)
    unmarked = sure and not flat.config["confidence_head_with_markov"]
    name = DFlashOptions.method  # llama.cpp has one architecture for all
    return head_layout(
        name,
        replace(flat, source=checkpoint.source),
        layout.sizes,
        target,
        states=layout.states,
        rotary=head.rotary.angles,
        fields={
            f"{name}.block_size": layout.block,
            f"{name}.sample_from_anchor": anchored,
            f"{name}.has_confidence_head": sure,
            "tokenizer.ggml.mask_token_id": layout.mask,
        },
        features={
            "sample_from_anchor": anchored and not kind.FIRST_ROW,
            "a confidence head that reads no token": unmarked,
            "sliding or causal layers": not layout.reach.ordinary,
        },
        start=command(kind.METHOD, layout.draft_tokens, target),
    )
