"""Anchors in packed records, and the base task that predicts several tokens after each
of them, with its metrics.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from foreword.checks import whole
from foreword.errors import InvalidRequest
from foreword_train.data.packing import Block
from foreword_train.losses import prefix_weights
from foreword_train.task import TargetOutputs, TrainContext, TrainTask, accepted


@dataclass(frozen=True, slots=True)
class Anchors:
    """Places in blocks, and which of the tokens after each are to be predicted."""

    places: Int[Tensor, "batch anchors"]
    """Index of the last known token."""
    valid: Bool[Tensor, "batch anchors draft_tokens"]
    """True where that token after the anchor, and all between, are training targets."""

    def tokens(
        self, block: Block, first: int = 1
    ) -> Int[Tensor, "batch anchors draft_tokens"]:
        """Return the tokens from `first` places after the anchor on; arbitrary past the
        end of the block.
        """
        ahead = torch.arange(
            first, first + self.valid.shape[-1], device=self.places.device
        )
        places = (self.places[..., None] + ahead).clamp(max=block.tokens.shape[1] - 1)
        return block.tokens.gather(1, places.flatten(1)).view_as(places)


def pick(block: Block, most: int, draft_tokens: int, *, spread: bool) -> Anchors:
    """Choose at most `most` anchors per block; none is a record's first token."""
    learnt = F.pad(block.learnt, (0, draft_tokens))
    valid = learnt[:, 1:].unfold(1, draft_tokens, 1).cumprod(-1).bool()
    good = valid[..., 0] & (block.positions > 0)
    if spread:
        order = good.cumsum(1) - 1
        step = (
            (good.sum(1, keepdim=True) + most - 1)
            .div(most, rounding_mode="floor")
            .clamp(min=1)
        )
        scores = (good & (order % step == 0)).float()
    else:
        scores = torch.rand(good.shape, device=good.device) + good
        good = good & (scores >= 1)
    places = scores.topk(min(most, scores.shape[1])).indices
    chosen = good & (scores > 0)
    return Anchors(
        places,
        valid.gather(1, places[..., None].expand(-1, -1, draft_tokens))
        & chosen.gather(1, places)[..., None],
    )


class BlockTask(TrainTask):
    """Base task: predict the distributions of the next tokens after anchors. Subclasses
    supply inputs and module.

    The loss of a block is its mean over the predictions times the learnt tokens, since
    the trainer divides by those.
    """

    def __init__(
        self,
        context: TrainContext,
        module: nn.Module,
        *,
        states: tuple[int, ...],
        draft_tokens: int,
        anchors: int,
        decay: float,
    ) -> None:
        """`states` are the target's hidden states to read. Depth k has loss weight
        exp(-(k - 1) / decay); with a decay of 0, `prefix_weights`."""
        whole(1)("anchors", anchors)
        if context.temperature <= 0 or decay < 0:
            raise InvalidRequest(
                f"cannot train with temperature {context.temperature} and decay "
                f"{decay}: "
                "'temperature' must be above 0 and 'decay' 0 or more"
            )
        super().__init__(context, module)
        self.draft_tokens = draft_tokens
        self._states = states
        self._anchors = anchors
        self._decay = decay

    @abstractmethod
    def hidden(
        self, module: nn.Module, block: Block, outputs: TargetOutputs, anchors: Anchors
    ) -> Float[Tensor, "batch anchors draft_tokens hidden"]:
        """Return the module's hidden state at every predicted token."""

    @abstractmethod
    def distributions(
        self,
        hidden: Float[Tensor, "valid hidden"],
        before: Int[Tensor, "valid"],
        depth: Int[Tensor, "valid"],
    ) -> Float[Tensor, "valid vocab"]:
        """Return logits at the valid depths, given the token before each and its depth
        (0 for the first).
        """

    def loss(self, module: nn.Module, block: Block) -> Float[Tensor, ""]:
        predictions = self._predict(module, block, spread=False)
        return self._weighted(predictions, self.losses(predictions), block)

    def losses(self, predictions: "Predictions") -> Float[Tensor, "valid"]:
        """Return the loss of every prediction."""
        return self.compared(predictions.target, predictions.draft)

    def measure(self, module: nn.Module, block: Block) -> dict[str, Float[Tensor, ""]]:
        """Return the loss; acceptance at temperature 1 (1 - TV) and 0 (same argmax),
        overall and by depth, given the data's own tokens before; and `kept`, the
        expected accepted length of a chain."""
        predictions = self._predict(module, block, spread=True)
        means = {
            name: value.nan_to_num(0.0) * block.learnt.sum()
            for name, value in self.metrics(predictions).items()
        }
        return {
            "loss": self._weighted(predictions, self.losses(predictions), block),
            **means,
        }

    def metrics(self, predictions: "Predictions") -> dict[str, Float[Tensor, ""]]:
        """Return means over the predictions in a block."""
        acceptance, same = accepted(predictions.target, predictions.draft)
        table = acceptance.new_zeros(predictions.valid.shape).masked_scatter(
            predictions.valid, acceptance
        )
        means = {
            "acceptance": acceptance.mean(),
            "agreement": same.mean(),
            "kept": table.cumprod(-1).sum() / predictions.valid[..., 0].sum(),
        }
        for depth in range(self.draft_tokens):
            here = predictions.depth == depth
            means[f"acceptance_{depth + 1}"] = acceptance[here].mean()
            means[f"agreement_{depth + 1}"] = same[here].mean()
        return means

    def _weighted(
        self, predictions: "Predictions", losses: Float[Tensor, "valid"], block: Block
    ) -> Float[Tensor, ""]:
        if self._decay:
            weights = torch.exp(-predictions.depth / self._decay)
        else:
            probabilities = (
                predictions.draft.detach()
                .float()
                .log_softmax(-1)
                .gather(-1, predictions.tokens[:, None])
                .exp()
                .squeeze(-1)
            )
            table = probabilities.new_zeros(predictions.valid.shape).masked_scatter(
                predictions.valid, probabilities
            )
            weights = prefix_weights(table)[predictions.valid]
        return (
            (weights * losses).sum()
            / weights.sum().clamp(min=1e-6)
            * block.learnt.sum()
        )

    def anchors(self, block: Block, *, spread: bool) -> Anchors:
        """Choose the anchors of a forward, evenly spread for a measurement."""
        return pick(block, self._anchors, self.draft_tokens, spread=spread)

    def _predict(
        self, module: nn.Module, block: Block, *, spread: bool
    ) -> "Predictions":
        block, outputs = self.read_target(block, self._states)
        anchors = self.anchors(block, spread=spread)
        valid = anchors.valid
        depth = torch.arange(self.draft_tokens, device=valid.device).expand_as(valid)[
            valid
        ]
        before = anchors.tokens(block, 0)[valid]
        hidden = self.hidden(module, block, outputs, anchors)[valid]
        draft = self.distributions(hidden, before, depth)
        rows = torch.arange(len(valid), device=valid.device)[:, None, None].expand_as(
            valid
        )[valid]
        places = anchors.places[..., None].expand_as(valid)[valid] + depth
        target = outputs.logits[rows, places]
        return Predictions(
            target, draft, anchors.tokens(block)[valid], before, depth, hidden, valid
        )


@dataclass(frozen=True, slots=True)
class Predictions:
    """Logits of target and draft at the valid depths of all anchors, flattened."""

    target: Float[Tensor, "valid vocab"]
    draft: Float[Tensor, "valid vocab"]
    tokens: Int[Tensor, "valid"]
    """The data's own token there."""
    before: Int[Tensor, "valid"]
    """The data's token before it."""
    depth: Int[Tensor, "valid"]
    """0 for the first predicted token."""
    hidden: Float[Tensor, "valid hidden"]
    valid: Bool[Tensor, "batch anchors draft_tokens"]
    """Mask of the flattened rows."""
