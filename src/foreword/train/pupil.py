"""What somebody who is to be trained finds when training begins, and must be able to do in the end.

Knows targets and tasks; knows no method by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from jaxtyping import Int
from torch import Tensor

from foreword.model import HFModel, Tokenizer
from foreword.train.losses import Loss
from foreword.train.trainer import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What there is before training begins."""

    source: str | Path
    """The target's folder or hub id."""
    target: HFModel
    tokenizer: Tokenizer
    eos: frozenset[int]
    """Ids that end a text."""
    loss: Loss
    temperature: float
    """What both laws are taken at."""
    length: int
    """Tokens in a block."""
    seed: int
    counts: Callable[[], Int[Tensor, "vocab"]]
    """How often each token is to be learnt, in the first records of the data; takes a while."""


@runtime_checkable
class Pupil(Task, Protocol):
    """A task whose outcome can be saved."""

    @property
    def parameters(self) -> int:
        """Numbers that a checkpoint of it holds."""
        ...

    def save(self, folder: Path) -> None:
        """Write what the method that serves it can load."""
        ...
