"""The badges of the README, drawn from what the project promises: `make numbers`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures" / "badges"
PYTHON = "Programming Language :: Python :: 3."
CHARACTER = 6.6
"""Pixels of a character of the font."""
PADDING = 12
"""Pixels beside a text, both sides together."""
BADGE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" \
aria-label="{label}: {value}">
<rect width="{width}" height="20" rx="3" fill="#30363d"/>
<rect x="{left}" width="{right}" height="20" rx="3" fill="#2f6fb0"/>
<g fill="#fff" text-anchor="middle" font-family="Verdana, sans-serif" font-size="11">
<text x="{label_at}" y="14">{label}</text>
<text x="{value_at}" y="14">{value}</text>
</g>
</svg>
"""


def badges() -> dict[str, str]:
    """Return the badges, file name -> SVG, from pyproject.toml of the core."""
    file = ROOT / "packages" / "foreword" / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    values = {
        "python": _pythons(project),
        "torch": _range(project, "torch"),
        "transformers": _range(project, "transformers"),
        "licence": project["license"].partition(" ")[0],
    }
    return {f"{label}.svg": _badge(label, value) for label, value in values.items()}


def main() -> None:
    """Write the badges."""
    FOLDER.mkdir(exist_ok=True)
    for name, svg in badges().items():
        (FOLDER / name).write_text(svg, encoding="utf-8")


def _pythons(project: dict[str, Any]) -> str:
    names = [name for name in project["classifiers"] if name.startswith(PYTHON)]
    minors = sorted(int(name.removeprefix(PYTHON)) for name in names)
    return f"3.{minors[0]} – 3.{minors[-1]}"


def _range(project: dict[str, Any], package: str) -> str:
    """Return the versions of a dependency that are supported."""
    [needed] = [one for one in project["dependencies"] if one.startswith(f"{package}>")]
    least, _, below = needed.removeprefix(f"{package}>=").partition(",<")
    return f"{least} to below {below}" if below else f"{least} or later"


def _badge(label: str, value: str) -> str:
    left = round(CHARACTER * len(label)) + PADDING
    right = round(CHARACTER * len(value)) + PADDING
    return BADGE.format(
        label=label,
        value=value,
        left=left,
        right=right,
        width=left + right,
        label_at=left / 2,
        value_at=left + right / 2,
    )


if __name__ == "__main__":
    main()
