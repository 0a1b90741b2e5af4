"""Training of a head on the target's hidden states, and then on its own (training-time
test).

After Li et al. 2025 (arXiv 2503.01840), section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from foreword.errors import InvalidRequest
from foreword.model.layers import layer_count
from foreword_train.data.packing import Block
from foreword_train.task import TrainContext, TrainTask, accepted

FADE = 0.8
"""Loss weight of a step relative to the one before, which is reached more often."""


def check_steps(steps: int) -> None:
    """Raise InvalidRequest for too few steps."""
    if steps < 1:
        raise InvalidRequest(
            f"cannot unroll {steps} steps: 'unroll' must be at least 1"
        )


class Unrolled(nn.Module):
    """A head that reads its own hidden states, step by step, as when drafting."""

    def __init__(self, head: nn.Module, steps: int) -> None:
        """`head`: as for `UnrolledTask`."""
        super().__init__()
        self.head: Any = head
        self.steps = steps

    def forward(
        self,
        embedded: Float[Tensor, "batch token hidden"],
        states: Float[Tensor, "batch token features"],
        positions: Int[Tensor, "batch token"],
        selected: Sequence[Bool[Tensor, "batch row"]],
    ) -> list[
        tuple[Float[Tensor, "selected draft_vocab"], Float[Tensor, "selected hidden"]]
    ]:
        """Return, for each step, logits of the selected rows and the hidden states that
        they are computed from.

        Row t of step j predicts the token after token t + 1 + j.
        """
        rows = embedded.shape[1] - 1
        same = _same_record(positions)[:, :rows, :rows]
        before: list[tuple[Tensor, Tensor]] = []
        hidden, outputs = self.head.fused(states[:, :rows]), []
        for step in range(self.steps):
            # Beyond the end of a block there is nothing to read, and no row is selected
            # either.
            tokens = embedded[:, 1 + step :]
            tokens = F.pad(tokens, (0, 0, 0, rows - tokens.shape[1]))

            def seen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                before.append((k, v))
                return unrolled_attention(q, before, same)

            hidden = self.head(
                tokens,
                hidden,
                positions[:, :rows] + step,
                seen,
            )
            ready = self.head.normed(hidden[selected[step]])
            outputs.append((self.head.lm_head(ready), ready))
        return outputs


@dataclass(frozen=True, slots=True)
class _Step:
    """Target and head where a learnt token comes next: float32 logits, and the hidden
    states behind them.
    """

    target: Float[Tensor, "selected vocab"]
    draft: Float[Tensor, "selected draft_vocab"]
    state: Float[Tensor, "selected target_hidden"]
    hidden: Float[Tensor, "selected hidden"]


class UnrolledTask(TrainTask):
    """Task that trains a head to predict its target several tokens ahead; the target
    runs on the fly.

    The head has `fused` (target states to its own), `normed` and `lm_head` (its states
    to logits), and is called with (embedded, states, positions, attention).
    """

    def __init__(
        self,
        context: TrainContext,
        head: nn.Module,
        *,
        steps: int,
        states: tuple[int, ...],
        feature: float = 0.0,
    ) -> None:
        """`steps`: draft tokens in a row. `states`: the target's hidden states that the
        head reads. `feature`: weight of the distance between its states and the
        target's last ones.
        """
        super().__init__(context, Unrolled(head, steps))
        self._count = steps
        self._states = states
        self._feature = feature

    @property
    def vocabulary(self) -> Int[Tensor, "draft_vocab"] | None:
        """Target ids of the head's vocabulary; None = it is the target's own."""
        return None

    def embed(self, tokens: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows hidden"]:
        """Return the embeddings that the head reads."""
        return self.target.get_input_embeddings()(tokens)

    def loss(self, module: nn.Module, block: Block) -> Float[Tensor, ""]:
        """Return the distribution loss plus, if weighted, the feature loss (Li et al.
        2024, arXiv 2401.15077, section 3.2).
        """
        total = torch.zeros((), device=block.tokens.device)
        tokens = self.vocabulary
        for step, output in enumerate(self._steps(module, block)):
            target = output.target if tokens is None else output.target[:, tokens]
            losses = self.compared(target, output.draft)
            if self._feature:
                far = F.smooth_l1_loss(
                    output.hidden,
                    output.state,
                    reduction="none",
                )
                losses = losses + self._feature * far.mean(-1)
            total = total + FADE**step * losses.sum()
        return total / sum(FADE**step for step in range(self._count))

    def measure(self, module: nn.Module, block: Block) -> dict[str, Float[Tensor, ""]]:
        """Return acceptance at temperature 1 (1 - TV) and argmax agreement, at every
        step, given the text before.
        """
        metrics: dict[str, Tensor] = {}
        for step, output in enumerate(self._steps(module, block), 1):
            whole = output.draft
            if self.vocabulary is not None:
                whole = output.draft.new_full(output.target.shape, -torch.inf)
                whole.index_copy_(1, self.vocabulary, output.draft)
            acceptance, agreed = accepted(output.target, whole)
            metrics[f"acceptance_{step}"] = acceptance.sum()
            metrics[f"agreement_{step}"] = agreed.sum()
        return metrics

    def _steps(self, module: nn.Module, block: Block) -> list[_Step]:
        last = layer_count(self.target.config)
        block, outputs = self.read_target(block, (*self._states, last))
        target = outputs.logits
        features = outputs.states.float()
        with torch.no_grad():
            embedded = self.embed(block.tokens).float()
        size = features.shape[-1] // (len(self._states) + 1)
        inputs, states = features.split([size * len(self._states), size], -1)
        selected = [_selected(block, step) for step in range(self._count)]
        drafted = module(
            embedded,
            inputs,
            block.positions,
            selected,
        )
        steps = []
        for step, (draft, hidden) in enumerate(drafted):
            # Row t of a step corresponds to the target's row t + 1 + step.
            mask = selected[step][:, : max(0, target.shape[1] - 1 - step)]
            rows = slice(1 + step, None)
            output = _Step(
                target=target[:, rows][mask],
                draft=draft,
                state=states[:, rows][mask],
                hidden=hidden.float(),
            )
            steps.append(output)
        return steps


def unrolled_attention(
    query: Float[Tensor, "batch heads row dim"],
    steps: Sequence[
        tuple[Float[Tensor, "batch kv row dim"], Float[Tensor, "batch kv row dim"]]
    ],
    seen: Bool[Tensor, "batch row row"],
) -> Float[Tensor, "batch row heads dim"]:
    """Attend to the first step's keys in `seen`, and in every later step to the row
    itself alone.

    So a row of the last step ends a chain of draft tokens that begins at its place in
    the text.
    """
    share = query.shape[1] // steps[0][0].shape[1]
    (keys, values), *later = [
        (
            k.repeat_interleave(share, 1),
            v.repeat_interleave(share, 1),
        )
        for k, v in steps
    ]
    scores = query @ keys.transpose(-1, -2)
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    later_scores = [(query * k).sum(-1, keepdim=True) for k, _ in later]
    scale = query.shape[-1] ** -0.5
    weights = (torch.cat([scores, *later_scores], -1).float() * scale).softmax(-1)
    weights = weights.to(values.dtype)
    rows = keys.shape[2]
    result = weights[..., :rows] @ values
    for step, (_, v) in enumerate(later):
        result = result + weights[..., rows + step : rows + step + 1] * v
    return result.transpose(1, 2)


def _same_record(
    positions: Int[Tensor, "batch token"],
) -> Bool[Tensor, "batch token token"]:
    """Mask of the rows that each row may see: of its own record, and not after it."""
    record = (positions == 0).cumsum(1)
    order = torch.arange(positions.shape[1], device=positions.device)
    same = record[:, :, None] == record[:, None, :]
    before = order[:, None] >= order[None, :]
    return same & before


def _selected(block: Block, step: int) -> Bool[Tensor, "batch row"]:
    """Select the rows of a step that predict a learnt token of their own record."""
    ahead = 2 + step
    selected = torch.zeros_like(block.learnt[:, 1:])
    later = block.positions[:, ahead:]
    together = later == block.positions[:, :-ahead] + ahead
    count = together.shape[1]
    selected[:, :count] = block.learnt[:, ahead:] & together
    return selected
