"""Places of packed records after which several guesses at once are learnt, and the figures of what is guessed there.

Knows blocks of records, a frozen target and losses; knows nothing about what guesses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from foreword.errors import InvalidRequest
from foreword.model.listen import listening
from foreword.params import whole
from foreword.train.losses import Loss, agreement, compare, overlap, prefix_weights
from foreword.train.pack import Block
from foreword.train.pupil import Setting


@dataclass(frozen=True, slots=True)
class Anchors:
    """Places in blocks, each with the tokens after it that are to be guessed there."""

    places: Int[Tensor, "batch anchors"]
    """The last token that is known."""
    valid: Bool[Tensor, "batch anchors guesses"]
    """The token so many after the anchor is learnt, and so are those between."""

    def tokens(self, block: Block, first: int = 1) -> Int[Tensor, "batch anchors guesses"]:
        """The tokens from so many places after the anchor on; anything where there are none."""
        ahead = torch.arange(first, first + self.valid.shape[-1], device=self.places.device)
        places = (self.places[..., None] + ahead).clamp(max=block.tokens.shape[1] - 1)
        return block.tokens.gather(1, places.flatten(1)).view_as(places)


def pick(block: Block, most: int, guesses: int, *, spread: bool) -> Anchors:
    """At most so many anchors in each block: drawn, or as evenly as can be. None is the first token of its record."""
    learnt = F.pad(block.learnt, (0, guesses))
    valid = learnt[:, 1:].unfold(1, guesses, 1).cumprod(-1).bool()
    good = valid[..., 0] & (block.positions > 0)
    if spread:
        order = good.cumsum(1) - 1
        step = (good.sum(1, keepdim=True) + most - 1).div(most, rounding_mode="floor").clamp(min=1)
        scores = (good & (order % step == 0)).float()
    else:
        scores = torch.rand(good.shape, device=good.device) + good
        good = good & (scores >= 1)
    places = scores.topk(min(most, scores.shape[1])).indices
    chosen = good & (scores > 0)
    return Anchors(
        places, valid.gather(1, places[..., None].expand(-1, -1, guesses)) & chosen.gather(1, places)[..., None]
    )


@dataclass(frozen=True, slots=True)
class Heard:
    """What the frozen target says of blocks of records."""

    states: Float[Tensor, "batch length features"]
    logits: Float[Tensor, "batch length vocab"]


class Ahead(ABC):
    """A task: after anchors, guess the laws of the next tokens. Subclasses say from what, and with which module.

    The loss of a block is its mean over what is guessed there, times the tokens that are learnt in it, as the trainer
    divides by those.
    """

    module: nn.Module

    def __init__(self, setting: Setting, *, states: tuple[int, ...], guesses: int, anchors: int, decay: float) -> None:
        """`states` are those of the target that are heard; a guess at depth k weighs exp(-(k - 1) / decay), and with a
        decay of 0 as much as hangs on it (`prefix_weights`)."""
        whole(1)("anchors", anchors)
        if setting.temperature <= 0 or decay < 0:
            raise InvalidRequest(f"temperature must be above 0 and decay not below, got {setting.temperature}, {decay}")
        self.target = setting.target.eval().requires_grad_(False)
        self.temperature, self.guesses = setting.temperature, guesses
        self._loss: Loss = setting.loss
        self._states, self._anchors, self._decay = states, anchors, decay

    @abstractmethod
    def hidden(
        self, module: nn.Module, block: Block, heard: Heard, anchors: Anchors
    ) -> Float[Tensor, "batch anchors guesses hidden"]:
        """What the module thinks at every guess."""

    @abstractmethod
    def laws(
        self, hidden: Float[Tensor, "valid hidden"], before: Int[Tensor, "valid"], depth: Int[Tensor, "valid"]
    ) -> Float[Tensor, "valid vocab"]:
        """Logits of the guesses that count, the token before each and its depth, 0 for the first, being known."""

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters() if parameter.requires_grad)

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what the method that serves it can load."""

    def to(self, device: torch.device) -> None:
        nn.Module.to(self.target, device)
        nn.Module.to(self.module, device)

    def data(self, block: Block, seed: int) -> Block:
        del seed
        return block

    def loss(self, module: nn.Module, block: Block) -> Float[Tensor, ""]:
        said = self._said(module, block, spread=False)
        return self._weighted(said, self.losses(said), block)

    def losses(self, said: Said) -> Float[Tensor, "valid"]:
        """The loss of every guess."""
        return compare(self._loss, said.target, said.draft, self.temperature)

    def measure(self, module: nn.Module, block: Block) -> dict[str, Float[Tensor, ""]]:
        """The loss; acceptance at temperature 1 (1 - TV) and at 0 (same likeliest token), of all guesses and depth by
        depth, with the target's reading of what was really said before; `kept`, the guesses that so many in a row
        would be kept of."""
        said = self._said(module, block, spread=True)
        found = {name: value.nan_to_num(0.0) * block.learnt.sum() for name, value in self.figures(said).items()}
        return {"loss": self._weighted(said, self.losses(said), block), **found}

    def figures(self, said: Said) -> dict[str, Float[Tensor, ""]]:
        """Means over what is guessed in a block."""
        kept, same = compare(overlap, said.target, said.draft), agreement(said.target, said.draft).float()
        table = kept.new_zeros(said.valid.shape).masked_scatter(said.valid, kept)
        found = {
            "acceptance": kept.mean(),
            "agreement": same.mean(),
            "kept": table.cumprod(-1).sum() / said.valid[..., 0].sum(),
        }
        for depth in range(self.guesses):
            here = said.depth == depth
            found[f"acceptance_{depth + 1}"] = kept[here].mean()
            found[f"agreement_{depth + 1}"] = same[here].mean()
        return found

    def _weighted(self, said: Said, losses: Float[Tensor, "valid"], block: Block) -> Float[Tensor, ""]:
        if self._decay:
            weights = torch.exp(-said.depth / self._decay)
        else:
            chances = said.draft.detach().float().log_softmax(-1).gather(-1, said.tokens[:, None]).exp().squeeze(-1)
            table = chances.new_zeros(said.valid.shape).masked_scatter(said.valid, chances)
            weights = prefix_weights(table)[said.valid]
        return (weights * losses).sum() / weights.sum().clamp(min=1e-6) * block.learnt.sum()

    def _said(self, module: nn.Module, block: Block, *, spread: bool) -> Said:
        heard = self._hear(block)
        anchors = pick(block, self._anchors, self.guesses, spread=spread)
        valid = anchors.valid
        depth = torch.arange(self.guesses, device=valid.device).expand_as(valid)[valid]
        before = anchors.tokens(block, 0)[valid]
        thought = self.hidden(module, block, heard, anchors)[valid]
        draft = self.laws(thought, before, depth)
        rows = torch.arange(len(valid), device=valid.device)[:, None, None].expand_as(valid)[valid]
        places = anchors.places[..., None].expand_as(valid)[valid] + depth
        target = heard.logits[rows, places]
        return Said(target, draft, anchors.tokens(block)[valid], before, depth, thought, valid)

    @torch.no_grad()
    def _hear(self, block: Block) -> Heard:
        # Positions that begin again at 0 tell transformers where a record ends: no record sees another.
        read: dict[str, Any] = {"input_ids": block.tokens, "position_ids": block.positions, "use_cache": False}
        with listening(self.target, self._states) as states:
            logits = self.target(**read).logits
        return Heard(states().unflatten(0, block.tokens.shape), logits)


@dataclass(frozen=True, slots=True)
class Said:
    """What target and draft say of the guesses that count, one after another."""

    target: Float[Tensor, "valid vocab"]
    draft: Float[Tensor, "valid vocab"]
    tokens: Int[Tensor, "valid"]
    """What was really said."""
    before: Int[Tensor, "valid"]
    """And the token before it."""
    depth: Int[Tensor, "valid"]
    """0 for the first guess."""
    hidden: Float[Tensor, "valid hidden"]
    valid: Bool[Tensor, "batch anchors guesses"]
    """Where they stand."""
