"""Training of an EAGLE-3 head on the target's hidden states, and then on its own
(training-time test).

After Li et al. 2025 (arXiv 2503.01840), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig

from foreword.draft.heads.eagle_checkpoint import default_states, dump, load
from foreword.draft.heads.eagle_model import EagleConfig, EagleHead
from foreword.errors import InvalidRequest
from foreword.model.architectures import head_dim, inner_size, kv_heads
from foreword.model.executors.torch.hooks import lm_head_weight
from foreword.model.layers import layer_count
from foreword.train.data.packing import Block
from foreword.train.registry import EagleOptions
from foreword.train.task import TrainContext, TrainTask, accepted, seeded

FADE = 0.8
"""Loss weight of a step relative to the one before: later steps are reached more
rarely.
"""


class Unrolled(nn.Module):
    """A head that reads its own hidden states, step after step, as it does when
    drafting.
    """

    def __init__(self, head: EagleHead, steps: int) -> None:
        super().__init__()
        self.head, self.steps = head, steps

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
        hidden, outputs = self.head.fc(states[:, :rows]), []
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


class HeadTraining(TrainTask):
    """Task that trains a head to predict its target several tokens ahead; the target
    runs on the fly.
    """

    def __init__(self, context: TrainContext, options: EagleOptions) -> None:
        """Raises InvalidRequest or ModelError where the head and the target
        do not fit.
        """
        self.head = head = _head(context, options)
        super().__init__(context, Unrolled(head, options.unroll))
        self._unroll = options.unroll
        self._feature = options.feature

    def save(self, folder: Path) -> None:
        dump(self.head, self.target.dtype, self.target.config).write(folder)

    def loss(self, module: nn.Module, block: Block) -> Float[Tensor, ""]:
        """Return the distribution loss plus, if weighted, the feature loss (EAGLE-1: Li
        et al. 2024, section 3.2).
        """
        total = torch.zeros((), device=block.tokens.device)
        tokens = self.head.tokens
        for step, one in enumerate(self._steps(module, block)):
            losses = self.compared(one.target[:, tokens], one.draft)
            if self._feature:
                far = F.smooth_l1_loss(
                    one.hidden,
                    one.state,
                    reduction="none",
                )
                losses = losses + self._feature * far.mean(-1)
            total = total + FADE**step * losses.sum()
        return total / sum(FADE**step for step in range(self._unroll))

    def measure(self, module: nn.Module, block: Block) -> dict[str, Float[Tensor, ""]]:
        """Return acceptance at temperature 1 (1 - TV) and argmax agreement, at every
        step, given the text before.
        """
        metrics: dict[str, Tensor] = {}
        for step, one in enumerate(self._steps(module, block), 1):
            whole = one.draft.new_full(one.target.shape, -torch.inf)
            whole.index_copy_(1, self.head.tokens, one.draft)
            kept, agreed = accepted(one.target, whole)
            metrics[f"acceptance_{step}"] = kept.sum()
            metrics[f"agreement_{step}"] = agreed.sum()
        return metrics

    def _steps(self, module: nn.Module, block: Block) -> list[_Step]:
        config = self.head.config
        last = layer_count(self.target.config)
        block, outputs = self.read_target(block, (*config.states, last))
        target = outputs.logits
        features = outputs.states.float()
        with torch.no_grad():
            embedded = self._embed(block.tokens).float()
        size = config.target_hidden
        inputs, states = features.split([size * len(config.states), size], -1)
        selected = [_selected(block, step) for step in range(self._unroll)]
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
            one = _Step(
                target=target[:, rows][mask],
                draft=draft,
                state=states[:, rows][mask],
                hidden=hidden.float(),
            )
            steps.append(one)
        return steps

    def _embed(self, tokens: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows hidden"]:
        own = self.head.embed_tokens
        if own is None:
            own = self.target.get_input_embeddings()
        return own(tokens)


def _head(context: TrainContext, options: EagleOptions) -> EagleHead:
    """Return the head to train: a given one, or a new one."""
    if options.unroll < 1:
        raise InvalidRequest(
            f"cannot unroll {options.unroll} steps: 'unroll' must be at least 1"
        )
    if not options.draft:
        return new(context, options)
    head = load(options.draft, context.target.config)
    own = head.config.llama.hidden_size
    if options.feature and own != head.config.target_hidden:
        raise InvalidRequest(
            f"cannot train {options.draft} with the feature loss: its hidden size of "
            f"{own} differs from the target's {head.config.target_hidden}. Leave "
            "'feature' at 0"
        )
    return head


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
    own = [(query * k).sum(-1, keepdim=True) for k, _ in later]
    scale = query.shape[-1] ** -0.5
    weights = (torch.cat([scores, *own], -1).float() * scale).softmax(-1)
    weights = weights.to(values.dtype)
    rows = keys.shape[2]
    result = weights[..., :rows] @ values
    for step, (_, v) in enumerate(later):
        result = result + weights[..., rows + step : rows + step + 1] * v
    return result.transpose(1, 2)


def new(context: TrainContext, options: EagleOptions) -> EagleHead:
    """Create a float32 head of the target's sizes that starts with the target's LM
    head.
    """
    config = context.target.config.get_text_config()
    count, size = layer_count(config), config.hidden_size
    heads = config.num_attention_heads
    llama = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=size,
        intermediate_size=options.intermediate or inner_size(config),
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads(config),
        head_dim=head_dim(config),
        rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6),
        max_position_embeddings=getattr(config, "max_position_embeddings", 32768),
        rope_parameters=_rope(config),
    )
    vocab = min(options.draft_vocab, config.vocab_size)
    sizes = EagleConfig(
        llama=llama,
        states=_states(options.states, count),
        target_hidden=size,
        draft_vocab=vocab,
    )
    head = seeded(context.seed, lambda: EagleHead(sizes))
    if vocab < config.vocab_size:
        frequent = context.counts().topk(vocab).indices.sort().values
        head.d2t.copy_(frequent - torch.arange(vocab))
        head.t2d.zero_()[frequent] = True
    weight = lm_head_weight(context.target)
    if weight is not None:
        head.lm_head.weight.data.copy_(weight[head.tokens])
    return head


def _states(spec: str | None, layers: int) -> tuple[int, ...]:
    """Parse the states of an option. Default: the states that every engine reads, if
    the target has enough layers.
    """
    if spec is None:
        if layers > 5:
            return default_states(layers)
        return tuple(sorted({layers // 2, layers - 1, layers}))
    numbers = [part.strip() for part in spec.split(",")]
    if not all(part.isdecimal() and int(part) <= layers for part in numbers):
        raise InvalidRequest(
            f"cannot read states {spec!r}: 'states' must be numbers from 0 to "
            f"{layers}, like 2,4,5"
        )
    return tuple(map(int, numbers))


def _rope(config: PreTrainedConfig) -> dict[str, object]:
    """Return the target's RoPE where it depends on the position alone and is the same
    in every layer.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("default", "llama3", "linear"):
        return dict(rope)
    return {
        "rope_type": "default",
        "rope_theta": 10000.0,
    }


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
