"""Training of Medusa heads (arXiv 2401.10774): several tokens ahead from one hidden
state of the frozen target.

The task of predicting tokens after anchors is in ahead.py.
"""

from pathlib import Path

from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.heads.medusa import MedusaHeads
from foreword.errors import InvalidRequest, ModelError
from foreword.model.executors.torch.hooks import apply_lm_head, lm_head_weight
from foreword.model.layers import layer_count
from foreword.model.loading.checkpoint import Checkpoint
from foreword_train.data.packing import Block
from foreword_train.methods.ahead import Anchors, BlockTask
from foreword_train.registry import MedusaOptions
from foreword_train.task import TargetOutputs, TrainContext


class MedusaTask(BlockTask):
    """Task of heads that start as copies of the target's LM head; head k predicts the
    token k places later.
    """

    def __init__(self, context: TrainContext, options: MedusaOptions) -> None:
        depth = layer_count(context.target.config)
        self._heads = _heads(context, options)
        super().__init__(
            context,
            self._heads,
            states=(depth,),
            draft_tokens=len(self._heads),
            anchors=options.anchors,
            decay=options.decay,
        )

    def hidden(
        self, module: nn.Module, block: Block, outputs: TargetOutputs, anchors: Anchors
    ) -> Float[Tensor, "batch anchors draft_tokens hidden"]:
        del block
        # the target has not read the anchor yet
        before = (anchors.places - 1).clamp(min=0)
        states = outputs.states.gather(
            1, before[..., None].expand(-1, -1, outputs.states.shape[-1])
        )
        return module(states.float().flatten(0, 1)).unflatten(0, before.shape)

    def distributions(
        self,
        hidden: Float[Tensor, "valid hidden"],
        before: Int[Tensor, "valid"],
        depth: Int[Tensor, "valid"],
    ) -> Float[Tensor, "valid vocab"]:
        del before
        return (
            self._heads.logits(hidden, depth)
            if self._heads.own
            else apply_lm_head(self.target, hidden)
        )

    def save(self, folder: Path) -> None:
        self._heads.dump(self.target.dtype).write(folder)


def _heads(context: TrainContext, options: MedusaOptions) -> MedusaHeads:
    if options.draft is not None:
        return MedusaHeads.read(Checkpoint.read(options.draft)).float()
    if min(options.heads, options.layers) < 1:
        raise InvalidRequest(
            f"cannot create {options.heads} heads of {options.layers} layers: 'heads' "
            "and 'layers' must be 1 or more"
        )
    config = context.target.config.get_text_config()
    heads = MedusaHeads(
        options.heads,
        options.layers,
        config.hidden_size,
        config.vocab_size,
        own=options.own,
    )
    if options.own:
        weight = lm_head_weight(context.target)
        if weight is None:
            raise ModelError(
                f"cannot copy the LM head of {type(context.target).__name__}: it has "
                "no output embeddings. "
                "Leave 'own' off"
            )
        weights = {
            f"{head}.{options.layers}.weight": weight for head in range(options.heads)
        }
        heads.load_state_dict({**heads.state_dict(), **weights})
    return heads
