"""Parts of Markdown that several pages of the site are made of."""

from __future__ import annotations


def cell(text: str) -> str:
    """Return a text as one line of a table."""
    return " ".join(text.split()).replace("|", "\\|")
