"""Training of a DSpark head (arXiv 2607.05147): distributions conditioned on the token
before, and their confidence.

The block task itself is in masked.py and ahead.py.
"""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.heads.dspark import DSparkHead
from foreword.draft.heads.masked import Layout
from foreword.errors import InvalidRequest
from foreword.model.executors.torch.hooks import apply_lm_head
from foreword.model.loading.checkpoint import Checkpoint
from foreword_train.losses import compare, overlap
from foreword_train.methods.ahead import Predictions
from foreword_train.methods.masked import MaskedBlockTask, new_head, trainable
from foreword_train.registry import DSparkOptions
from foreword_train.task import TrainContext


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
        losses = super().losses(predictions)
        confidence = self._confidence(predictions)
        if confidence is None:
            return losses
        draft = predictions.draft.detach()
        acceptance = compare(overlap, predictions.target, draft).clamp(0, 1)
        return losses + F.binary_cross_entropy_with_logits(
            confidence,
            acceptance,
            reduction="none",
        )

    def metrics(self, predictions: Predictions) -> dict[str, Float[Tensor, ""]]:
        """Add the mean absolute error and bias of the predicted acceptance."""
        metrics = super().metrics(predictions)
        confidence = self._confidence(predictions)
        if confidence is None:
            return metrics
        acceptance = compare(overlap, predictions.target, predictions.draft)
        error = confidence.sigmoid() - acceptance
        return metrics | {
            "promise_error": error.abs().mean(),
            "promise_bias": error.mean(),
        }

    def _confidence(
        self,
        predictions: Predictions,
    ) -> Float[Tensor, "valid"] | None:
        """Return the log-odds that the draft tokens are accepted, in float32."""
        confidence = self._head.confidence(
            predictions.hidden,
            predictions.before,
        )
        return None if confidence is None else confidence.float()


def _head(context: TrainContext, options: DSparkOptions) -> DSparkHead:
    if options.draft is not None:
        return trainable(DSparkHead.read(Checkpoint.read(options.draft)), options.draft)
    if options.rank < 1:
        raise InvalidRequest(
            f"cannot create a head of rank {options.rank}: 'rank' must be 1 or more"
        )

    def make(layout: Layout) -> DSparkHead:
        head = DSparkHead(layout, options.rank)
        table = head.markov_head
        nn.init.normal_(table.markov_w1.weight, std=options.rank**-0.5)
        # the bigram correction starts at 0
        nn.init.zeros_(table.markov_w2.weight)
        return head

    return new_head(context, options, make, sample_from_anchor=True)
