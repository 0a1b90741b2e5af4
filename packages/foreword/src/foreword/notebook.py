"""A live view of a stream in a notebook."""

from collections.abc import Iterable

from foreword.errors import InvalidRequest
from foreword.types import Delta
from foreword.types.markup import Piece, answer_html


def show(deltas: Iterable[Delta]) -> str:
    """Show a stream in a notebook while it is written; return its text.

    `show(llm.stream("Once upon a time"))` updates the cell's output after each round.
    Raises InvalidRequest where IPython is not installed.
    """
    try:
        from IPython.display import HTML, DisplayHandle
    except ImportError as error:
        raise InvalidRequest(
            "cannot show an answer: IPython is not installed. Print each delta.text"
        ) from error
    view = DisplayHandle()
    view.display(HTML(""))
    pieces: list[Piece] = []
    for rounds, delta in enumerate(deltas, 1):
        pieces += zip(delta.pieces, delta.origins, strict=True)
        facts = f"{len(pieces)} tokens in {rounds} rounds"
        view.update(HTML(answer_html(pieces, facts)))
    return "".join(text for text, _ in pieces)
