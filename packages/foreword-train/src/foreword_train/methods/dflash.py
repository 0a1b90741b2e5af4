"""Training of a DFlash head (arXiv 2602.06036); see masked.py and ahead.py."""

from jaxtyping import Float, Int
from torch import Tensor

from foreword.draft.heads.dflash import DFlashHead
from foreword.model.executors.torch.hooks import apply_lm_head
from foreword.model.loading.checkpoint import Checkpoint
from foreword_train.methods.masked import MaskedBlockTask, new_head, trainable
from foreword_train.registry import DFlashOptions
from foreword_train.task import TrainContext


class DFlashTask(MaskedBlockTask):
    """Task of a head that predicts every token of a block on its own."""

    def __init__(self, context: TrainContext, options: DFlashOptions) -> None:
        head = _head(context, options)
        super().__init__(context, head, anchors=options.anchors, decay=options.decay)

    def distributions(
        self,
        hidden: Float[Tensor, "valid hidden"],
        before: Int[Tensor, "valid"],
        depth: Int[Tensor, "valid"],
    ) -> Float[Tensor, "valid vocab"]:
        del before, depth
        return apply_lm_head(self.target, hidden)


def _head(context: TrainContext, options: DFlashOptions) -> DFlashHead:
    if options.draft is not None:
        return trainable(DFlashHead.read(Checkpoint.read(options.draft)), options.draft)
    return new_head(context, options, DFlashHead, sample_from_anchor=False)
