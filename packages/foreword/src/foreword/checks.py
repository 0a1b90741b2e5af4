"""Checks of settings: (name, value) -> the value to store, or InvalidRequest."""

import math
from collections.abc import Callable
from numbers import Integral
from typing import Any

from foreword.errors import InvalidRequest, check_unicode

Check = Callable[[str, Any], Any]
"""(name, value) -> the value to store. Raises InvalidRequest if it is not allowed."""


def is_zero_dimensional(value: object) -> bool:
    """Return whether a value is a 0-d array or tensor, which cannot be iterated."""
    return getattr(value, "shape", None) == ()


def scalar(value: Any) -> Any:
    """Return the number in a 0-d array or tensor; any other value unchanged."""
    return (
        value.item() if is_zero_dimensional(value) and hasattr(value, "item") else value
    )


def whole(
    low: int,
    high: float = math.inf,
    shown: str | None = None,
    *,
    optional: bool = False,
) -> Check:
    """Return the check of an int, or None if `optional`. Booleans are refused."""
    span = f">= {low}" if high == math.inf else f"in {shown or f'[{low}, {high}]'}"
    expected = f"{'None or ' if optional else ''}a whole number {span}"

    def check(name: str, value: Any) -> int | None:
        if optional and value is None:
            return None
        number = scalar(value)
        if (
            isinstance(number, bool)
            or not isinstance(number, Integral)
            or not low <= int(number) <= high
        ):
            raise InvalidRequest(f"{name} must be {expected}, got {value!r}")
        return int(number)

    return check


def flag(name: str, value: Any) -> bool:
    """Return a truth value, or raise InvalidRequest."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be True or False, got {value!r}")
    return value


def text(name: str, value: Any) -> str:
    """Return a string of valid Unicode, or raise InvalidRequest."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, got {value!r}")
    return check_unicode(name, value)
