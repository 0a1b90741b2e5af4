"""What every dialect of the API does: one answer, written in its shape."""

from typing import Any, Protocol, runtime_checkable

from foreword.types import Delta
from foreword_server.answer import Answer, Choice, Shown
from foreword_server.errors import ApiError
from foreword_server.wire import PING


@runtime_checkable
class Dialect(Protocol):
    """How one answer is written in one API."""

    def whole(self, answer: Answer) -> dict[str, Any]:
        """Return the body of a complete answer."""
        ...

    def start(self, answer: Answer) -> bytes:
        """Return the first events of a stream."""
        ...

    def push(self, choice: Choice, events: list[Shown], delta: Delta) -> bytes:
        """Return the events of one delta."""
        ...

    def progress(self, answer: Answer) -> bytes:
        """Return the event that says how much of the prompt is read, if the request
        asks for it and there is news; else nothing.
        """
        return b""

    def ping(self) -> bytes:
        """Return what shows that the server lives: a comment, which clients skip."""
        return PING

    def end(self, answer: Answer) -> bytes:
        """Return the last events of a stream."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """Return the event that ends a stream after an error."""
        ...
