"""The checks of a certificate, and the certificate as plain values, as JSON and as one
self-contained HTML file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, Literal

from foreword_lab.certify.clock import Clock
from foreword_lab.html_page import document, elements, table, write

Status = Literal["consistent", "numerics", "cannot say", "differs"]
"""Outcome of a check."""
MEANINGS: dict[Status, str] = {
    "consistent": "As it should be.",
    "numerics": "Differs only where rounding may be the cause.",
    "cannot say": "Nothing in it could have gone wrong, or it is refused.",
    "differs": "A fault.",
}
"""A sentence for each status."""
CODES = {"consistent": 0, "differs": 1, "cannot say": 2}
"""Exit codes of the verdicts."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its outcome in a sentence, and the numbers behind it."""

    name: str
    status: Status
    what: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    bound: float | None = None
    """Total variation of tokens from which on a difference would have been found with
    probability 0.9; None = the check is not about frequencies.
    """


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
        machine: Mapping[str, Any] | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> Certificate:
        """Return the certificate of a run that ends now; `machine`: what computed the
        texts, if it is known.
        """
        date = datetime.now(UTC).isoformat(timespec="seconds")
        seconds = round(clock.spent, 1)
        used = versions or {
            "foreword": version("foreword-lab"),
            "python": python_version(),
        }
        return cls(subject, date, seed, seconds, machine or {}, used, tuple(checks))

    @property
    def status(self) -> Status:
        """Outcome of the whole run: consistent if at least the frequencies are."""
        if any(one.status == "differs" for one in self.checks):
            return "differs"
        return "cannot say" if self.bound is None else "consistent"

    @property
    def bound(self) -> float | None:
        """Largest total variation of tokens that may have been missed; None where no
        check of frequencies says anything.
        """
        bounds = (one.bound for one in self.checks if one.status == "consistent")
        return max((one for one in bounds if one is not None), default=None)

    @property
    def verdict(self) -> str:
        """The outcome of the whole run in one sentence."""
        counts = Counter(one.status for one in self.checks)
        listed = [f"{counts[one]} {one}" for one in MEANINGS if counts[one]]
        up_to = f" up to {self.bound:.2g}" if self.status == "consistent" else ""
        return f"{self.status}{up_to}: {', '.join(listed)}".capitalize()

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "certificate": 2,
            **asdict(self),
            "status": self.status,
            "bound": self.bound,
            "verdict": self.verdict,
        }


SAMPLES = "samples"
"""Evidence that the JSON has, and that is too long for the page."""
SIGNS: dict[Status, str] = {
    "consistent": "✓",
    "numerics": "≈",
    "cannot say": "○",
    "differs": "✗",
}
"""One character for each status, so that colour is not needed to read a table."""
STYLE = """table { width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; }
td:first-child { white-space: nowrap; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
.consistent { color: light-dark(#18794e, #3fb950); }
.differs { color: light-dark(#c62a2f, #ff7b72); font-weight: bold; }
.numerics { color: light-dark(#8a5a00, #d29922); }
"""


def page(certificate: Certificate) -> str:
    """Return the HTML of a certificate."""
    rows = (_row(one) for one in certificate.checks)
    facts = (
        f"<tr>{elements('th', [name])}{elements('td', [_shown(value)])}</tr>"
        for name, value in _about(certificate).items()
    )
    meanings = "\n".join(
        elements("dt", [f"{SIGNS[status]} {status}"]) + elements("dd", [text])
        for status, text in MEANINGS.items()
    )
    body = f"""<h1>Foreword certificate</h1>
<p class="{certificate.status.replace(" ", "-")}">
{escape(certificate.verdict)}</p>
{table(("outcome", "check", "result"), rows)}
<h2>What was checked</h2>
{table((), facts)}
<h2>Outcomes</h2>
<dl>
{meanings}
</dl>"""
    return document(f"Foreword certificate, {certificate.date}", STYLE, body)


def write_json(file: Path, certificate: Certificate) -> None:
    """Write the JSON file. Raises InvalidRequest if it cannot be written."""
    text = json.dumps(certificate.as_json(), indent=1, ensure_ascii=False)
    write(file, text + "\n")


def _row(check: Check) -> str:
    kind = check.status.replace(" ", "-")
    shown = {name: value for name, value in check.evidence.items() if name != SAMPLES}
    evidence = json.dumps(shown, indent=1, ensure_ascii=False)
    more = (
        f"<details><summary>evidence</summary>{elements('pre', [evidence])}</details>"
    )
    more = more if check.evidence else ""
    return (
        f'<tr><td class="{kind}">{SIGNS[check.status]} {check.status}</td>'
        f"<td>{escape(check.name)}</td><td>{escape(check.what)}{more}</td></tr>"
    )


def _about(certificate: Certificate) -> dict[str, Any]:
    return {
        **certificate.subject,
        "date": certificate.date,
        "seed": certificate.seed,
        "seconds": certificate.seconds,
        **certificate.machine,
        **{f"version of {name}": text for name, text in certificate.versions.items()},
    }


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
