"""The certificate as one self-contained HTML file, without scripts."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from foreword.certify.report import MEANINGS, Certificate, Check, Status
from foreword.html_page import document, elements, table, write

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
