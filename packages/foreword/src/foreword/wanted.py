"""Lets long work end early, between its steps, when its client has left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from foreword.errors import InvalidRequest

_LEFT: ContextVar[Callable[[], bool] | None] = ContextVar("foreword_left", default=None)
"""Whether the client of the work in this context has left; None: no client can."""


class Abandoned(InvalidRequest):
    """A request whose client has left."""


@contextmanager
def dropped_when(left: Callable[[], bool]) -> Iterator[None]:
    """Have `check_wanted` raise inside once `left` returns True; threads inherit it."""
    token = _LEFT.set(left)
    try:
        yield
    finally:
        _LEFT.reset(token)


def check_wanted() -> None:
    """Raise Abandoned if the client has left. Costs less than a microsecond."""
    left = _LEFT.get()
    if left is not None and left():
        raise Abandoned(
            "cannot finish this request: its client has left. Send it again"
        )
