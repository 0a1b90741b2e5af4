"""Training context, and the interface that a trainable drafter implements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from jaxtyping import Int
from torch import Tensor

from foreword.model import HFModel, Seq2Seq, Tokenizer
from foreword.train.losses import Loss
from foreword.train.trainer import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainContext:
    """Target, tokenizer and settings that a task is constructed from."""

    source: str | Path
    """The target's folder or hub id."""
    target: HFModel
    tokenizer: Tokenizer | None
    """None for a target whose tokens are no text."""
    eos: frozenset[int]
    """Ids that end a text."""
    loss: Loss
    temperature: float
    """Temperature of both distributions in the loss."""
    length: int
    """Tokens in a block."""
    seed: int
    counts: Callable[[], Int[Tensor, "vocab"]]
    """Occurrences of each token as a training target, in the first records of the data;
    slow.
    """
    trusted: bool = False
    """Allow code of the models' own folders to run."""

    @property
    def start(self) -> int:
        """Tokens that the decoder of an encoder-decoder reads before an answer; 0 for a
        decoder-only target.
        """
        rules = Seq2Seq.of(self.target, str(self.source))
        return 0 if rules is None else len(rules.start)


@runtime_checkable
class Trainable(Task, Protocol):
    """A task whose drafter can be saved."""

    @property
    def parameters(self) -> int:
        """Number of parameters in its checkpoint."""
        ...

    def save(self, folder: Path) -> None:
        """Write a checkpoint that its method can load."""
        ...
