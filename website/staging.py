"""The pages of the site, copied out of the repository.

They are those of `docs/`, and some that stand at the root.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAGED = ROOT / "build" / "docs"
"""Where the pages are copied to, and where generated ones are written."""
PROJECT = (
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
"""Pages at the root; the site has them in its folder `project`."""
FILES = "files"
"""Folder of the site for other files that pages link to."""
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^\s*```")


def stage() -> None:
    """Copy the pages, and every file of the repository that one links to."""
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(
        ROOT / "docs", STAGED, ignore=shutil.ignore_patterns("*.json", "README.md")
    )
    shutil.copytree(ROOT / "website" / "assets", STAGED / "assets")
    for page in sorted((ROOT / "docs").rglob("*.md")):
        place = page.relative_to(ROOT / "docs")
        if (STAGED / place).exists():
            _write(page, place)
    for name in PROJECT:
        _write(ROOT / name, Path("project") / name)


def _write(page: Path, place: Path) -> None:
    """Write a page to its place in the site, with links that lead there."""
    lines = []
    fenced = False
    for line in page.read_text(encoding="utf-8").splitlines(keepends=True):
        fenced ^= bool(FENCE.match(line))
        lines.append(line if fenced else _linked(line, page, place))
    target = STAGED / place
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(lines), encoding="utf-8")


def _linked(line: str, page: Path, place: Path) -> str:
    """Return a line of a page with its links as the site has them."""

    def follow(found: re.Match[str]) -> str:
        start, link, anchor, end = found.groups()
        if re.match(r"[a-z]+:", link):
            return found[0]
        goal = _goal((page.parent / link).resolve())
        if goal is None:
            return found[0]
        away = os.path.relpath(goal, place.parent)
        return start + Path(away).as_posix() + (anchor or "") + end

    return LINK.sub(follow, line)


def _goal(file: Path) -> Path | None:
    """Return the place of a file of the repository in the site, or None."""
    if not file.exists() or not file.is_relative_to(ROOT):
        return None
    name = file.relative_to(ROOT)
    if name.as_posix() in PROJECT:
        return Path("project") / name
    if name.as_posix() == "README.md":
        return Path("index.md")
    inside = name.relative_to("docs") if name.parts[0] == "docs" else None
    if inside is not None and (STAGED / inside).exists():
        return inside
    if file.is_dir():
        return None
    return _kept(file, name)


def _kept(file: Path, name: Path) -> Path:
    """Copy a file that is not a page into the site; return its place."""
    place = Path(FILES) / name
    if place.suffix == ".md":  # or it would become a page without a place in the menu
        place = place.with_suffix(".txt")
    target = STAGED / place
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
    return place
