"""Checks of JSON read from files: known fields, and numbers within bounds."""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from foreword.errors import InvalidRequest, words

MOST = sys.float_info.max
"""Bound of numbers that may be of any size, infinity excepted."""


def text_of(file: Path) -> str:
    """Return the text of a file. Raises InvalidRequest unless it is UTF-8."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"cannot read {file}: {words(error)}. Give a file of UTF-8 text"
        ) from error


def parsed(text: str, where: str) -> dict[str, Any]:
    """Return a JSON object. Raises InvalidRequest, which says `where`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"cannot read {where}: it is not JSON: {words(error)}. Give a JSON object"
        ) from error
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"cannot read {where}: it holds {type(value).__name__}. Give a JSON object"
        )
    return value


def check_names(
    values: Mapping[str, Any], known: Iterable[str], needed: Iterable[str], where: str
) -> None:
    """Raise InvalidRequest for fields that are not known, or that are missing."""
    names = list(known)
    unknown = [name for name in values if name not in names]
    missing = [name for name in needed if name not in values]
    if unknown:
        raise InvalidRequest(
            f"cannot read {where}: it has unknown fields {', '.join(unknown)}. Known "
            f"are {', '.join(names)}"
        )
    if missing:
        raise InvalidRequest(
            f"cannot read {where}: it has no {', '.join(missing)}. Add it"
        )


def number(
    name: str, value: object, where: str, *, low: float = 0.0, high: float = MOST
) -> float:
    """Return a number within bounds. Raises InvalidRequest that says `where`."""
    is_flag = isinstance(value, bool)
    if isinstance(value, int | float) and not is_flag and low <= value <= high:
        return value
    raise InvalidRequest(
        f"cannot use {where}: {name} is {value!r}. Give a number {_span(low, high)}"
    )


def whole_number(name: str, value: object, where: str, *, low: int = 1) -> int:
    """Return a whole number >= `low`. Raises InvalidRequest that says `where`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= low:
        return value
    raise InvalidRequest(
        f"cannot use {where}: {name} is {value!r}. Give a whole number from {low} on"
    )


def _span(low: float, high: float) -> str:
    """Return bounds in words."""
    if high == MOST:
        return f"from {low:g} on"
    return f"from {low:g} to {high:g}"
