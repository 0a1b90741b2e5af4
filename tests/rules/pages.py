"""Code blocks of the documentation: which page, which language, which lines."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATED = ("notes", "api")
"""Folders of docs/ that a reader does not follow: dated notes, and generated pages."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: str
    number: int
    """From 1, among the blocks of all languages of the page."""
    language: str
    text: str


def pages() -> list[Path]:
    """Return the pages that users follow, the README among them."""
    docs = ROOT / "docs"
    found = [
        page
        for page in sorted(docs.rglob("*.md"))
        if page.relative_to(docs).parts[0] not in DATED
    ]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *found]


def blocks(language: str) -> list[Block]:
    """Return all blocks of a language, page by page."""
    every = [block for page in pages() for block in blocks_of(page)]
    return [block for block in every if block.language == language]


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page in their order."""
    name = page.relative_to(ROOT).as_posix()
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [
        Block(name, number, language, text)
        for number, (language, text) in enumerate(found, 1)
    ]
