"""The choice of a method, and what it rests on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from foreword.registry import DEFAULT_RULE
from foreword_train.report.interval import Interval


@dataclass(frozen=True, slots=True)
class Arm:
    """A choice: a method with a constant number of draft tokens, or adaptive (None)."""

    method: str
    nodes: int | None
    rule: str = DEFAULT_RULE

    @property
    def name(self) -> str:
        """Return the method, with its rule where it is not the default."""
        if self.rule == DEFAULT_RULE:
            return self.method
        return f"{self.method} under {self.rule}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Predicted speed over plain decoding, if one thing were perfect."""

    free_drafting: float
    """Drafting takes no time."""
    free_rows: float
    """A forward over all draft tokens takes as long as one over one token."""
    all_accepted: float
    """Every draft token is accepted."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A choice and its predicted speed over plain decoding."""

    arm: Arm
    over_plain: Interval
    tokens_per_pass: float
    accepted: float
    """Share of the draft tokens that were accepted."""
    drafting: float
    """Share of the time that goes into drafting."""
    by_depth: tuple[float, ...]
    """Share of the rounds that accepted at least 1, 2, … draft tokens."""
    limits: Limits


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A choice that was timed."""

    arm: Arm
    predicted: float | None
    """Predicted speed over plain decoding; None of the adaptive budget."""
    measured: Interval

    @property
    def error(self) -> float | None:
        """Return how far the prediction was off, as a share of the measured speed."""
        if self.predicted is None:
            return None
        return self.predicted / self.measured.mid - 1


@dataclass(frozen=True, slots=True)
class Chosen:
    """The choice, and what it rests on."""

    best: Arm
    prompts: int
    temperature: float
    predictions: tuple[Prediction, ...]
    """The fastest first."""
    confirmations: tuple[Confirmation, ...]
    """The fastest first; plain decoding has 1."""
    left_out: Mapping[str, str]
    """Method -> why it could not be predicted."""
    costs: Mapping[int, float]
    """Tokens of a forward -> its seconds."""
    why: tuple[str, ...]
    """Sentences."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {
            "prediction_errors": [one.error for one in self.confirmations]
        }
