"""Findings with their evidence and remedy, and their order."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

MATTERS = 1.05
"""Times. A smaller remedy is not worth naming; predictions err by about as much."""

Level = Literal["good", "note", "bad"]
ORDER: tuple[Level, ...] = ("bad", "note", "good")
"""Order of findings whose cost is equal."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    level: Level
    name: str
    evidence: str
    """A sentence with the measured numbers."""
    remedy: str = ""
    """A sentence: what to type or change."""
    cost: float = 1.0
    """Times by which the remedy could raise the speed, predicted; 1 = no loss."""
    speed: float | None = None
    """Speed over plain decoding with the remedy, predicted; None if unknown."""

    @property
    def is_cause(self) -> bool:
        """Whether it is a cause of low speed."""
        return self.level == "bad" or self.cost >= MATTERS


def would_be(speed: float, condition: str) -> str:
    """Return a clause that says what the speed would be."""
    return f"the speed would be {speed:.2f}× plain decoding if {condition}"


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the causes, largest loss first, then the other findings."""
    return tuple(
        sorted(
            findings,
            key=lambda item: (not item.is_cause, -item.cost, ORDER.index(item.level)),
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All results of a diagnosis."""

    subject: dict[str, Any]
    """What was examined, such as the method."""
    work: dict[str, Any]
    """Measured figures: by temperature of a drafter, by method of a server."""
    lines: tuple[str, ...]
    """The figures in words."""
    findings: tuple[Finding, ...]
    """In the order of `ranked`."""

    @property
    def healthy(self) -> bool:
        """Whether no finding is bad."""
        return all(finding.level != "bad" for finding in self.findings)

    @property
    def causes(self) -> tuple[Finding, ...]:
        """Causes of low speed, largest loss first."""
        return tuple(finding for finding in self.findings if finding.is_cause)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **self.subject,
            "work": self.work,
            "findings": [
                asdict(finding) | {"cause": finding.is_cause}
                for finding in self.findings
            ],
            "healthy": self.healthy,
        }
