"""Notices of work that takes seconds, for commands that show progress."""

from collections.abc import Callable
from contextvars import ContextVar

RECEIVER: ContextVar[Callable[[str], object]] = ContextVar(
    "receiver", default=lambda _: None
)
"""Receives a line before each phase of a start."""


def notify(text: str) -> None:
    """Say what begins now."""
    RECEIVER.get()(text)
