"""The time of a run, and the lines about its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

QUICK = 20.0
"""Seconds. About what `--quick` takes with the bundled models on two cores."""
LINES = 40
"""Lines of a run, beside one for each stage: a log stays short."""


@dataclass(slots=True)
class Clock:
    """Seconds that a run may take, and the receiver of progress lines."""

    seconds: float
    note: Callable[[str], None] = lambda _: None
    is_quick: bool = False
    """Whether every check is made once only; then `seconds` is an estimate."""
    started: float = field(default_factory=monotonic)
    stage: str = ""
    reported: float = 0.0
    """Seconds at which the last line was sent."""

    @classmethod
    def of(cls, minutes: float, note: Callable[[str], None], *, quick: bool) -> Clock:
        """Return the clock of a run that begins now."""
        return cls(QUICK if quick else 60 * minutes, note, quick)

    @property
    def spent(self) -> float:
        """Seconds since the run began."""
        return monotonic() - self.started

    def before(self, share: float) -> bool:
        """Return whether less than this share of the time is over."""
        return not self.is_quick and self.spent < share * self.seconds

    def tell(self, what: str) -> None:
        """Report what runs now: every new stage, and each stage now and then.

        A stage is the text up to the first comma.
        """
        stage, spent = what.partition(",")[0], self.spent
        if stage == self.stage and spent - self.reported < self.seconds / LINES:
            return
        self.stage, self.reported = stage, spent
        done = min(spent, self.seconds)
        self.note(f"{done:.0f} of {self.seconds:.0f}: seconds, {what}")
