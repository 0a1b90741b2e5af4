"""Training of a layer of multi-token prediction, used again for every draft token
(FastMTP: arXiv 2509.18362), by unrolled steps.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface

from foreword.draft.mtp.mtp_checkpoint import available, dump, load, new
from foreword.draft.mtp.mtp_head import MtpHead
from foreword.errors import ModelError
from foreword.model.executors.torch.hooks import lm_head_weight
from foreword.model.layers import layer_count, layers_of
from foreword_train.methods.unrolled import UnrolledTask, check_steps
from foreword_train.registry import MtpOptions
from foreword_train.task import TrainContext, seeded

ATTENTION = "foreword-unrolled"
"""Name of the attention function below."""
UNREAD = ("softcap", "s_aux", "sliding_window")
"""Options of attention that training does not compute."""


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    seen: Any,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Compute the attention of one unrolled step, as transformers' layers call it."""
    del module, attention_mask
    names = [name for name in UNREAD if options.get(name) is not None]
    if names:
        raise ModelError(
            f"cannot train a layer whose attention has {', '.join(names)}: the "
            "unrolled steps do not compute it. Train another head"
        )
    usual = query.shape[-1] ** -0.5
    return seen(query * ((scaling or usual) / usual), key, value), None


AttentionInterface.register(ATTENTION, _attend)


class _Chained(nn.Module):
    """The layer with the target's LM head, which stays as it is."""

    lm_weight: Tensor

    def __init__(self, head: MtpHead, lm_weight: Float[Tensor, "vocab hidden"]) -> None:
        super().__init__()
        self.head = head
        self.register_buffer("lm_weight", lm_weight, persistent=False)

    def fused(self, states: Tensor) -> Tensor:
        return states

    def normed(self, states: Tensor) -> Tensor:
        return states

    def lm_head(self, states: Tensor) -> Tensor:
        return F.linear(states, self.lm_weight)

    def forward(
        self, embedded: Tensor, states: Tensor, positions: Tensor, seen: Any
    ) -> Tensor:
        return self.head(0, embedded, states, positions, seen=seen)


class MtpTask(UnrolledTask):
    """Task of one layer, which begins as the target's last layer."""

    def __init__(self, context: TrainContext, options: MtpOptions) -> None:
        """Raises InvalidRequest or ModelError if layer and target do not fit."""
        self.head = _head(context, options)
        weight = lm_head_weight(context.target)
        if weight is None:
            raise ModelError(
                f"cannot train a layer for {type(context.target).__name__}: it has no "
                "LM head. Choose a causal language model"
            )
        super().__init__(
            context,
            _Chained(self.head, weight),
            steps=options.unroll,
            states=(layer_count(context.target.config),),
        )

    def save(self, folder: Path) -> None:
        dump(self.head, self.target.dtype, self.target.config).write(folder)


def _head(context: TrainContext, options: MtpOptions) -> MtpHead:
    """Return the layer to train, in float32: a given, the target's, or a new one."""
    check_steps(options.unroll)
    hf: Any = context.target
    source = options.draft
    if source is None and available(context.source, layer_count(hf.config)):
        source = str(context.source)
    head = _begun(context) if source is None else load(source, hf, torch.float32)
    if head.depth > 1:
        raise ModelError(
            f"cannot train {source}: it has {head.depth} layers, and one is trained. "
            "Give 'draft' a folder with one layer"
        )
    head.attend_by(ATTENTION)
    return head.float().requires_grad_(True)


def _begun(context: TrainContext) -> MtpHead:
    """Return a new layer: the target's last, on the sum of embedding and state."""
    hf: Any = context.target
    head = new(hf).to_empty(device=context.target.device).float()
    last: Any = layers_of(hf)[-1]
    layer: Any = head.layers[0]
    size = head.hidden
    with torch.no_grad():
        for part in layer.modules():
            if part is not layer.mtp_block and type(part) is type(layer.enorm):
                nn.init.ones_(part.weight)
        layer.mtp_block.load_state_dict(last.state_dict())
        layer.post_norm.load_state_dict(hf.get_decoder().norm.state_dict())
        eye = torch.eye(size)
        noise = seeded(context.seed, lambda: nn.Linear(2 * size, size, bias=False))
        layer.eh_proj.weight.copy_(torch.cat([eye, eye], 1) + 0.1 * noise.weight)
    return head
