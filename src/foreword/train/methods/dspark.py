"""Training of a DSpark head (arXiv 2607.05147): distributions conditioned on the token
before, and their confidence.

The block task itself is in masked.py and ahead.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.heads.dspark import DSparkHead
from foreword.errors import InvalidRequest
from foreword.model.executors.torch.hooks import apply_lm_head
from foreword.model.loading.checkpoint import Checkpoint
from foreword.train.losses import compare, overlap
from foreword.train.methods.ahead import Predictions
from foreword.train.methods.masked import MaskedBlockTask, begin_as, mask_of, new_layout
from foreword.train.task import TrainContext

if TYPE_CHECKING:
    from foreword.train.registry import DSparkOptions


class DSparkTask(MaskedBlockTask):
    """Task that also trains the confidence head: its target is 1 - TV, in log loss."""

    def __init__(self, context: TrainContext, options: DSparkOptions) -> None:
        self._head = _head(context, options)
        super().__init__(
            context, self._head, anchors=options.anchors, decay=options.decay
        )

    def distributions(
        self,
        hidden: Float[Tensor, "valid hidden"],
        before: Int[Tensor, "valid"],
        depth: Int[Tensor, "valid"],
    ) -> Float[Tensor, "valid vocab"]:
        del depth
        return apply_lm_head(self.target, hidden).float() + self._head.markov_head(
            before
        )

    def losses(self, predictions: Predictions) -> Float[Tensor, "valid"]:
        confidence = self._head.confidence(predictions.hidden, predictions.before)
        if confidence is None:
            return super().losses(predictions)
        kept = compare(overlap, predictions.target, predictions.draft.detach()).clamp(
            0, 1
        )
        return super().losses(predictions) + F.binary_cross_entropy_with_logits(
            confidence.float(), kept, reduction="none"
        )

    def metrics(self, predictions: Predictions) -> dict[str, Float[Tensor, ""]]:
        """Add the mean absolute error and the bias of the predicted acceptance
        probability.
        """
        confidence = self._head.confidence(predictions.hidden, predictions.before)
        if confidence is None:
            return super().metrics(predictions)
        error = confidence.float().sigmoid() - compare(
            overlap, predictions.target, predictions.draft
        )
        return super().metrics(predictions) | {
            "promise_error": error.abs().mean(),
            "promise_bias": error.mean(),
        }

    def save(self, folder: Path) -> None:
        self._head.dump(self.target.dtype).write(folder)


def _head(context: TrainContext, options: DSparkOptions) -> DSparkHead:
    if options.draft is not None:
        return DSparkHead.read(Checkpoint.read(options.draft)).float()
    mask = mask_of(context) if options.mask is None else options.mask
    if options.rank < 1:
        raise InvalidRequest(
            f"cannot create a head of rank {options.rank}: 'rank' must be 1 or more"
        )
    layout = new_layout(
        context.target,
        layers=options.layers,
        block=options.block,
        mask=mask,
        sample_from_anchor=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        head = DSparkHead(layout, options.rank)
        nn.init.normal_(head.markov_head.markov_w1.weight, std=options.rank**-0.5)
        # the bigram correction starts at 0
        nn.init.zeros_(head.markov_head.markov_w2.weight)
    begin_as(head, context.target)
    return head
