"""The checks of a certificate, and the certificate as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from foreword.bench.machine import machine, versions
from foreword.certify.clock import Clock

Status = Literal["passed", "numerics", "proves nothing", "not supported", "failed"]
"""Outcome of a check.

*numerics*: texts differ where two tokens are within rounding of each other. *proves
nothing*: nothing could have gone wrong, as without accepted draft tokens.
*not supported*: the pair or the server refuses what the check needs.
"""
MEANINGS: dict[Status, str] = {
    "passed": "Checked, and as promised.",
    "numerics": "Differs only where two tokens are within rounding of each other.",
    "proves nothing": "Ran, but nothing in it could have gone wrong.",
    "not supported": "The pair or the server refuses what the check needs.",
    "failed": "A fault.",
}
"""A sentence for each status."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its outcome in a sentence, and the numbers behind it."""

    name: str
    status: Status
    what: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Certificate:
    """All checks of one run."""

    subject: Mapping[str, Any]
    """What was checked: target and drafts, or the server."""
    date: str
    """ISO 8601, in UTC."""
    seed: int
    seconds: float
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    checks: tuple[Check, ...]

    @classmethod
    def of(
        cls,
        subject: Mapping[str, Any],
        checks: Iterable[Check],
        seed: int,
        clock: Clock,
        device: str = "cpu",
    ) -> Certificate:
        """Return the certificate of a run that ends now, on this machine."""
        made = tuple(checks)
        date = datetime.now(UTC).isoformat(timespec="seconds")
        seconds = round(clock.spent, 1)
        return cls(subject, date, seed, seconds, machine(device), versions(), made)

    @property
    def passed(self) -> bool:
        """Whether no check found a fault."""
        return all(one.status != "failed" for one in self.checks)

    @property
    def verdict(self) -> str:
        """The outcome of the whole run in one sentence."""
        counts: dict[Status, int] = {}
        for one in self.checks:
            counts[one.status] = counts.get(one.status, 0) + 1
        listed = [f"{counts[one]} {one}" for one in MEANINGS if one in counts]
        found = "No fault was found" if self.passed else "A fault was found"
        return f"{found}: {', '.join(listed)}."

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "certificate": 1,
            **asdict(self),
            "passed": self.passed,
            "verdict": self.verdict,
        }
