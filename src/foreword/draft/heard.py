"""What a drafter has heard of the target's hidden states, sequence by sequence, until it has read them.

Knows rows and numbers; knows nothing about what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.types import Sequence


@dataclass(slots=True)
class _Tape:
    """Rows of one sequence, `start` being the token of the first; `end` comes after the last."""

    start: int = 0
    end: int = 0
    parts: list[Tensor] = field(default_factory=list)


class Heard:
    """Keeps the hidden states that `Drafter.hear` brings, from the last that was asked for on."""

    def __init__(self) -> None:
        self._tapes: dict[int, _Tape] = {}

    def add(self, sequence: Sequence, start: int, hidden: Float[Tensor, "tokens features"]) -> None:
        """The states of the tokens from number `start` on. What does not follow on what is there is not kept."""
        tape = self._tapes.setdefault(sequence.id, _Tape())
        if start == tape.end:
            tape.parts.append(hidden)
            tape.end += len(hidden)

    def up_to_date(self, sequence: Sequence) -> bool:
        """The target has been heard at every token but the last, which it has not read yet."""
        tape = self._tapes.get(sequence.id)
        return tape is not None and tape.end == len(sequence.tokens) - 1

    def since(self, sequence: Sequence, start: int) -> Float[Tensor, "tokens features"]:
        """The states of the tokens from number `start` on; those before it are forgotten."""
        tape = self._tapes[sequence.id]
        rows = torch.cat(tape.parts)[start - tape.start :]
        tape.start, tape.parts = start, [rows]
        return rows

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._tapes.pop(sequence.id, None)

    def __len__(self) -> int:
        return len(self._tapes)
