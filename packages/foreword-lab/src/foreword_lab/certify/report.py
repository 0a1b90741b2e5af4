"""The checks of a certificate, and the certificate as plain values, as JSON and as one
self-contained HTML file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Literal

from foreword.native.machine import machine, versions
from foreword_lab.certify.clock import Clock
from foreword_lab.html_page import document, elements, table, write

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
        for check in self.checks:
            counts[check.status] = counts.get(check.status, 0) + 1
        listed = [f"{counts[one]} {one}" for one in MEANINGS if one in counts]
        outcome = "No fault was found" if self.passed else "A fault was found"
        return f"{outcome}: {', '.join(listed)}."

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "certificate": 1,
            **asdict(self),
            "passed": self.passed,
            "verdict": self.verdict,
        }


SIGNS: dict[Status, str] = {
    "passed": "✓",
    "numerics": "≈",
    "proves nothing": "○",
    "not supported": "–",
    "failed": "✗",
}
"""One character for each status, so that colour is not needed to read a table."""
STYLE = """table { width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; }
td:first-child { white-space: nowrap; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
.passed { color: light-dark(#18794e, #3fb950); }
.failed { color: light-dark(#c62a2f, #ff7b72); font-weight: bold; }
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
<p class="{"passed" if certificate.passed else "failed"}">
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
    evidence = json.dumps(check.evidence, indent=1, ensure_ascii=False)
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
