"""Trains heads that fill in blocks of masked tokens, from the hidden states of a frozen target (arXiv 2602.06036).

Knows the head and what each of its rows may see; knows nothing about files or the loop.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from foreword.draft.masked import Layout, MaskedHead
from foreword.errors import InvalidRequest
from foreword.model import HFModel
from foreword.model.layer import Qwen3Config
from foreword.model.listen import layers_of
from foreword.model.names import head_dim, inner_size, kv_heads
from foreword.train.anchors import Ahead, Anchors, Heard
from foreword.train.pack import Block
from foreword.train.pupil import Setting


class Lesson(nn.Module):
    """A head over many blocks at once, each of which sees its own context and itself."""

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
        """`seen` says of every row which tokens of the text, and then which rows, it may see."""
        batch = len(states)
        remembered = self.head.remembered(states.flatten(0, 1), positions.flatten())

        def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            held = [
                torch.cat([old.unflatten(0, (batch, -1)), new.unflatten(0, (batch, -1))], 1).transpose(1, 2)
                for old, new in zip(remembered[number], (key, value), strict=True)
            ]
            asked = query.unflatten(0, (batch, -1)).transpose(1, 2)
            out = F.scaled_dot_product_attention(asked, *held, attn_mask=seen[:, None], enable_gqa=True)
            return out.transpose(1, 2).flatten(0, 1)

        return self.head(rows.flatten(0, 1), places.flatten(), attend).unflatten(0, (batch, -1))


class Filling(Ahead):
    """Guesses of a head that fills in masks after random anchors."""

    def __init__(self, setting: Setting, head: MaskedHead, *, anchors: int, decay: float) -> None:
        self.head, self.layout = head, head.layout
        self.module = Lesson(head)
        super().__init__(setting, states=self.layout.states, guesses=self.layout.guesses, anchors=anchors, decay=decay)

    def hidden(
        self, module: nn.Module, block: Block, heard: Heard, anchors: Anchors
    ) -> Float[Tensor, "batch anchors guesses hidden"]:
        count, rows = anchors.places.shape[1], self.layout.block
        known = block.tokens.gather(1, anchors.places)[..., None]
        tokens = torch.cat([known, known.new_full((*known.shape[:2], rows - 1), self.layout.mask)], -1)
        first = block.positions.gather(1, anchors.places)
        places = (first[..., None] + torch.arange(rows, device=first.device)).flatten(1)
        seen = _seen(block, anchors.places, rows)
        x = self.target.get_input_embeddings()(tokens.flatten(1)).float()
        thought = module(heard.states.float(), block.positions, x, places, seen)
        return thought.unflatten(1, (count, rows))[:, :, rows - self.guesses :]


def _seen(block: Block, anchors: Int[Tensor, "batch anchors"], rows: int) -> Bool[Tensor, "batch rows keys"]:
    """Tokens of the anchor's own record that come before it, and the rows of the same block."""
    length, count = block.tokens.shape[1], anchors.shape[1]
    piece = (block.positions == 0).cumsum(1)
    place = torch.arange(length, device=anchors.device)
    text = (piece[:, None] == piece.gather(1, anchors)[..., None]) & (place < anchors[..., None])
    own = (
        torch.eye(count, dtype=torch.bool, device=anchors.device).repeat_interleave(rows, 0).repeat_interleave(rows, 1)
    )
    return torch.cat([text.repeat_interleave(rows, 1), own.expand(len(anchors), -1, -1)], -1)


def new_layout(target: HFModel, *, layers: int, block: int, mask: int, anchored: bool) -> Layout:
    """A layout of a head with layers as wide as the target's, that hears it at as many places, from low to high.

    Raises InvalidRequest for a block of fewer than two rows, or a mask that is no token.
    """
    config = target.config.get_text_config()
    depth, vocab = config.num_hidden_layers, config.vocab_size
    if layers < 1 or block < 2 or not 0 <= mask < vocab:
        raise InvalidRequest(
            f"a head needs a layer, a block of two rows, and a mask among {vocab} tokens; got {layers}, {block}, {mask}"
        )
    names = "hidden_size num_attention_heads vocab_size max_position_embeddings"
    sizes = {name: getattr(config, name) for name in names.split()}
    sizes["intermediate_size"], sizes["head_dim"] = inner_size(config), head_dim(config)
    sizes["num_key_value_heads"] = kv_heads(config)
    rope = dict(getattr(config, "rope_parameters", None) or {"rope_type": "default", "rope_theta": 10_000.0})
    norm = getattr(config, "rms_norm_eps", 1e-6)
    made = Qwen3Config(**sizes, num_hidden_layers=layers, rms_norm_eps=norm, rope_parameters=rope)
    return Layout(made, heard_at(depth, layers), block, mask, anchored, depth)


@torch.no_grad()
def begin_as(head: MaskedHead, target: HFModel) -> None:
    """Begin as the last layers of the target, where theirs are of the same make: they fit its own head already."""
    theirs = list(layers_of(target))[-len(head.layers) :]
    last = {name: tensor for name, tensor in target.base_model.named_parameters() if name == "norm.weight"}
    for ours, source in [*zip(head.layers, (layer.state_dict() for layer in theirs), strict=False), (head, last)]:
        known = ours.state_dict()
        fits = {name: t.float() for name, t in source.items() if name in known and t.shape == known[name].shape}
        ours.load_state_dict(fits, strict=False)


def heard_at(depth: int, count: int) -> tuple[int, ...]:
    """Hidden states to hear, evenly from after the second layer to three before the last (or the middle one alone)."""
    last = max(1, depth - 3)
    outputs = [round(1 + place * (last - 1) / (count - 1)) for place in range(count)] if count > 1 else [depth // 2]
    return tuple(sorted({min(output + 1, depth) for output in outputs}))


def mask_of(setting: Setting) -> int:
    """The tokenizer's own mask; else a token that never comes before another: what pads or ends a text."""
    known = (setting.tokenizer.mask_token_id, setting.tokenizer.pad_token_id, *sorted(setting.eos))
    return next((int(token) for token in known if isinstance(token, int)), 0)
