"""Trains Medusa heads (arXiv 2401.10774): from one hidden state of the frozen target, the laws of several tokens ahead.

Knows options, checkpoints and where the state stands; how guesses after anchors are learnt is in anchors.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.medusa import MedusaHeads
from foreword.errors import InvalidRequest, ModelError
from foreword.model.checkpoint import Checkpoint
from foreword.model.listen import spoken
from foreword.train.anchors import Ahead, Anchors, Heard
from foreword.train.pack import Block
from foreword.train.pupil import Setting

if TYPE_CHECKING:
    from foreword.train.students import MedusaStudent


class MedusaTask(Ahead):
    """Heads that begin as the target's own: head k learns what it would say k tokens later."""

    def __init__(self, setting: Setting, student: MedusaStudent) -> None:
        depth = setting.target.config.get_text_config().num_hidden_layers
        self.module = self._made = _heads(setting, student)
        super().__init__(
            setting, states=(depth,), guesses=len(self._made), anchors=student.anchors, decay=student.decay
        )

    def hidden(
        self, module: nn.Module, block: Block, heard: Heard, anchors: Anchors
    ) -> Float[Tensor, "batch anchors guesses hidden"]:
        del block
        before = (anchors.places - 1).clamp(min=0)  # the target has not read the anchor yet
        states = heard.states.gather(1, before[..., None].expand(-1, -1, heard.states.shape[-1]))
        return module(states.float().flatten(0, 1)).unflatten(0, before.shape)

    def laws(
        self, hidden: Float[Tensor, "valid hidden"], before: Int[Tensor, "valid"], depth: Int[Tensor, "valid"]
    ) -> Float[Tensor, "valid vocab"]:
        del before
        return self._made.speak(hidden, depth) if self._made.own else spoken(self.target, hidden)

    def save(self, folder: Path) -> None:
        self._made.dump(self.target.dtype).write(folder)


def _heads(setting: Setting, student: MedusaStudent) -> MedusaHeads:
    if student.draft is not None:
        return MedusaHeads.read(Checkpoint.read(student.draft)).float()
    if min(student.heads, student.layers) < 1:
        raise InvalidRequest(f"heads and layers must be 1 or more, got {student.heads} and {student.layers}")
    config = setting.target.config.get_text_config()
    made = MedusaHeads(student.heads, student.layers, config.hidden_size, config.vocab_size, own=student.own)
    if student.own:
        said = setting.target.get_output_embeddings()
        if said is None:
            raise ModelError(f"{type(setting.target).__name__} has no output head to begin with")
        weights = {f"{head}.{student.layers}.weight": said.weight.float() for head in range(student.heads)}
        made.load_state_dict({**made.state_dict(), **weights})
    return made
