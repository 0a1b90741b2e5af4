"""Trains an EAGLE-3 head on a target's own thoughts, and on what the head makes of them (training-time test).

After Li et al. 2025 (arXiv 2503.01840), section 3. Knows the head and a loss; knows no data files, nor the loop.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig

from foreword.draft.eagle_files import dump, load, usual_states
from foreword.draft.eagle_head import EagleConfig, EagleHead
from foreword.errors import InvalidRequest
from foreword.model.listen import listening
from foreword.model.names import head_dim, inner_size, kv_heads
from foreword.train.losses import agreement, compare, overlap
from foreword.train.pack import Block
from foreword.train.pupil import Setting
from foreword.train.students import EagleStudent

FADE = 0.8
"""Weight of a step against the one before: what comes later is reached the more rarely."""


class Unrolled(nn.Module):
    """A head that reads its own thoughts, step after step, as it will when it guesses."""

    def __init__(self, head: EagleHead, steps: int) -> None:
        super().__init__()
        self.head, self.steps = head, steps

    def forward(
        self,
        embedded: Float[Tensor, "batch token hidden"],
        states: Float[Tensor, "batch token features"],
        positions: Int[Tensor, "batch token"],
        wanted: List[Bool[Tensor, "batch row"]],
    ) -> list[tuple[Float[Tensor, "wanted draft_vocab"], Float[Tensor, "wanted hidden"]]]:
        """Of each step where it is wanted, logits and what they are read from.

        Row t of step j says what comes after token t + 1 + j.
        """
        rows = embedded.shape[1] - 1
        same = _same_record(positions)[:, :rows, :rows]
        before: list[tuple[Tensor, Tensor]] = []
        thoughts, said = self.head.fc(states[:, :rows]), []
        for step in range(self.steps):
            # Beyond the end of a block there is nothing to read, and nothing is wanted either.
            tokens = embedded[:, 1 + step :]
            tokens = torch.cat([tokens, tokens.new_zeros(len(tokens), rows - tokens.shape[1], tokens.shape[2])], 1)

            def seen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                before.append((k, v))
                return unrolled_attention(q, before, same)

            thoughts = self.head.think(tokens, thoughts, positions[:, :rows] + step, seen)
            ready = self.head.ready(thoughts[wanted[step]])
            said.append((self.head.lm_head(ready), ready))
        return said


@dataclass(frozen=True, slots=True)
class _Step:
    """Target and head, where a learnt token comes next: float32 logits, and the states that they are read from."""

    target: Float[Tensor, "wanted vocab"]
    draft: Float[Tensor, "wanted draft_vocab"]
    state: Float[Tensor, "wanted target_hidden"]
    thought: Float[Tensor, "wanted hidden"]


class HeadTraining:
    """A head learns to say what its target will, several tokens ahead; the target is asked on the fly."""

    def __init__(self, setting: Setting, student: EagleStudent) -> None:
        """Raises InvalidRequest or ModelError where the head and the target do not fit."""
        if student.unroll < 1:
            raise InvalidRequest(f"unroll must be at least 1, got {student.unroll}")
        self.target = setting.target.eval().requires_grad_(False)
        self._loss, self.temperature, self._feature = setting.loss, setting.temperature, student.feature
        head = load(student.draft, self.target.config) if student.draft else new(setting, student)
        if student.feature and head.config.llama.hidden_size != head.config.target_hidden:
            raise InvalidRequest(
                f"{student.draft} has states of {head.config.llama.hidden_size} numbers, which cannot be compared with "
                f"the target's of {head.config.target_hidden}; leave feature at 0"
            )
        self.head = head
        self.module = Unrolled(head, student.unroll)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.head.parameters())

    def save(self, folder: Path) -> None:
        dump(self.head, self.target.dtype, self.target.config).write(folder)

    def to(self, device: torch.device) -> None:
        nn.Module.to(self.target, device)

    def data(self, block: Block, seed: int) -> Block:
        del seed
        return block

    def loss(self, module: nn.Module, block: Block) -> Float[Tensor, ""]:
        """Of the laws and, if wished, of the states that they are read from (EAGLE-1: Li et al. 2024, section 3.2)."""
        total = torch.zeros((), device=block.tokens.device)
        tokens = self.head.tokens
        for step, one in enumerate(self._steps(module, block)):
            found = compare(self._loss, one.target[:, tokens], one.draft, self.temperature)
            if self._feature:
                found = found + self._feature * F.smooth_l1_loss(one.thought, one.state, reduction="none").mean(-1)
            total = total + FADE**step * found.sum()
        return total / sum(FADE**step for step in range(self.module.steps))

    def measure(self, module: nn.Module, block: Block) -> dict[str, Float[Tensor, ""]]:
        """Acceptance at temperature 1 (1 - TV) and agreement of the likeliest, at every step, given the text before."""
        found: dict[str, Tensor] = {}
        for step, one in enumerate(self._steps(module, block), 1):
            whole = one.draft.new_full(one.target.shape, -torch.inf).index_copy_(1, self.head.tokens, one.draft)
            found[f"acceptance_{step}"] = compare(overlap, one.target, whole).sum()
            found[f"agreement_{step}"] = agreement(one.target, whole).float().sum()
        return found

    def _steps(self, module: nn.Module, block: Block) -> list[_Step]:
        config = self.head.config
        last = self.target.config.get_text_config().num_hidden_layers
        with torch.no_grad(), listening(self.target, (*config.states, last)) as heard:
            read = {"input_ids": block.tokens, "position_ids": block.positions, "use_cache": False}
            target = self.target(**read).logits
            features = heard().view(*block.tokens.shape, -1).float()
            embedded = self._embed(block.tokens).float()
        inputs, states = features.split([config.target_hidden * len(config.states), config.target_hidden], -1)
        wanted = [_wanted(block, step) for step in range(self.module.steps)]
        steps = []
        for step, (draft, thought) in enumerate(module(embedded, inputs, block.positions, wanted)):
            # Row t of a step stands for the target's row t + 1 + step.
            mask, rows = wanted[step][:, : target.shape[1] - 1 - step], slice(1 + step, None)
            steps.append(_Step(target[:, rows][mask], draft, states[:, rows][mask], thought.float()))
        return steps

    def _embed(self, tokens: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows hidden"]:
        own = self.head.embed_tokens
        return (self.target.get_input_embeddings() if own is None else own)(tokens)


def unrolled_attention(
    query: Float[Tensor, "batch heads row dim"],
    steps: List[tuple[Float[Tensor, "batch kv row dim"], Float[Tensor, "batch kv row dim"]]],
    seen: Bool[Tensor, "batch row row"],
) -> Float[Tensor, "batch row heads dim"]:
    """What each row sees: of the first step's keys those in `seen`, of every later step its own row alone.

    So a row of the last step stands at the end of a chain of guesses that begins at its place in the text.
    """
    share = query.shape[1] // steps[0][0].shape[1]
    (keys, values), *later = [(k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)) for k, v in steps]
    scores = (query @ keys.transpose(-1, -2)).masked_fill(~seen[:, None], -torch.inf)
    own = [(query * k).sum(-1, keepdim=True) for k, _ in later]
    weights = (torch.cat([scores, *own], -1).float() * query.shape[-1] ** -0.5).softmax(-1).to(values.dtype)
    rows = keys.shape[2]
    result = weights[..., :rows] @ values
    for step, (_, v) in enumerate(later):
        result = result + weights[..., rows + step : rows + step + 1] * v
    return result.transpose(1, 2)


def new(setting: Setting, student: EagleStudent) -> EagleHead:
    """A head of the target's sizes, that begins with the target's own way of speaking; float32."""
    about = setting.target.config.get_text_config()
    count, size = about.num_hidden_layers, about.hidden_size
    heads = about.num_attention_heads
    llama = LlamaConfig(
        vocab_size=about.vocab_size,
        hidden_size=size,
        intermediate_size=student.intermediate or inner_size(about),
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads(about),
        head_dim=head_dim(about),
        rms_norm_eps=getattr(about, "rms_norm_eps", 1e-6),
        max_position_embeddings=getattr(about, "max_position_embeddings", 32768),
        rope_parameters=_rope(about),
    )
    vocab = min(student.draft_vocab, about.vocab_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setting.seed)
        head = EagleHead(
            EagleConfig(llama=llama, states=_states(student.states, count), target_hidden=size, draft_vocab=vocab)
        )
    if vocab < about.vocab_size:
        chosen = setting.counts().topk(vocab).indices.sort().values
        head.d2t.copy_(chosen - torch.arange(vocab))
        head.t2d.zero_()[chosen] = True
    speech = setting.target.get_output_embeddings()
    if speech is not None:
        head.lm_head.weight.data.copy_(speech.weight[head.tokens])
    return head


def _states(asked: str | None, layers: int) -> tuple[int, ...]:
    """Those that are asked for; else as every engine takes them, where there are layers enough for three."""
    if asked is None:
        return usual_states(layers) if layers > 5 else tuple(sorted({layers // 2, layers - 1, layers}))
    numbers = [part.strip() for part in asked.split(",")]
    if not all(part.isdecimal() and int(part) <= layers for part in numbers):
        raise InvalidRequest(f"states must be numbers from 0 to {layers} with commas between them, got {asked!r}")
    return tuple(map(int, numbers))


def _rope(about: PreTrainedConfig) -> dict[str, object]:
    """The target's, where it depends on the position alone and is the same in every layer."""
    rope = getattr(about, "rope_parameters", None) or {}
    usual = {"rope_type": "default", "rope_theta": 10000.0}
    return dict(rope) if rope.get("rope_type") in ("default", "llama3", "linear") else usual


def _same_record(positions: Int[Tensor, "batch token"]) -> Bool[Tensor, "batch token token"]:
    """Whether a row may see another: one of its own record, not after it."""
    record = (positions == 0).cumsum(1)
    order = torch.arange(positions.shape[1], device=positions.device)
    return (record[:, :, None] == record[:, None, :]) & (order[None, :, None] >= order[None, None, :])


def _wanted(block: Block, step: int) -> Bool[Tensor, "batch row"]:
    """Rows of a step that say a token that is learnt, of the record that they stand in."""
    ahead = 2 + step
    wanted = torch.zeros_like(block.learnt[:, 1:])
    together = block.positions[:, ahead:] == block.positions[:, :-ahead] + ahead
    wanted[:, : together.shape[1]] = block.learnt[:, ahead:] & together
    return wanted
