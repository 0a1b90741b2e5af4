"""Answers in HTML, for notebooks: accepted draft tokens green, the target's bold."""

from collections.abc import Iterable
from html import escape
from itertools import groupby
from operator import itemgetter

Piece = tuple[str, str]
"""(text of a token, its origin)."""
STYLES = {
    "accepted": "color: light-dark(#18794e, #3fb950)",
    "bonus": "font-weight: bold",
}
"""Style of each origin: with the colours of the page, in light and dark notebooks."""
BLOCK = "white-space: pre-wrap; overflow-wrap: anywhere; max-width: 60rem"
LEGEND = (
    ("■ accepted draft tokens", "accepted"),
    ("  ", ""),
    ("■ tokens of the target", "bonus"),
)


def answer_html(pieces: Iterable[Piece], facts: str) -> str:
    """Return an answer with the origins of its tokens, a legend and a line of facts."""
    return (
        f'<div style="{BLOCK}">{marked(pieces)}</div>\n'
        f"<small>{marked(LEGEND)}  {escape(facts)}</small>"
    )


def marked(pieces: Iterable[Piece]) -> str:
    """Return text in HTML in which the style of each token shows its origin."""
    runs = groupby(pieces, key=itemgetter(1))
    return "".join(_span("".join(text for text, _ in run), one) for one, run in runs)


def _span(text: str, origin: str) -> str:
    return f'<span style="{STYLES.get(origin, "")}">{escape(text)}</span>'
