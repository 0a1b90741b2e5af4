"""Strict reading of JSON into dataclasses, by their type hints."""

import json
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
LATER = {"Round": {"method", "speeds"}}
"""By type: fields that older recordings lack."""


class Wrong(ValueError):
    """A value that does not have the form it should have; the message says where."""


def plain_json(text: str | bytes) -> Any:
    """Return a JSON text's value. Raises Wrong unless it is strict JSON."""
    try:
        return json.loads(text, parse_constant=_refused)
    except UnicodeDecodeError as error:
        raise Wrong(
            f"it is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error
    except json.JSONDecodeError as error:
        raise Wrong(
            f"it is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    # a number of thousands of digits; thousands of brackets
    except (ValueError, RecursionError) as error:
        raise Wrong(f"it is not JSON that can be read: {error}") from error


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def parsed(kind: type[T], value: Any, where: str) -> T:
    """Return a dataclass from plain values: every field must be there, with its type,
    and no other. Those in LATER may be missing.
    """
    hints = _hints(kind)
    if not isinstance(value, dict):
        raise Wrong(f"{where} must be an object, got {_shown(value)}")
    for problem, names in (
        ("lacks", [*hints.keys() - value.keys() - LATER.get(kind.__name__, set())]),
        ("has unknown", [*value.keys() - hints.keys()]),
    ):
        if names:
            raise Wrong(f"{where} {problem} {', '.join(sorted(map(repr, names)))}")
    prefix = "" if where == "the recording" else f"{where}."
    return kind(
        **{
            name: _value(hint, value[name], f"{prefix}{name}")
            for name, hint in hints.items()
            if name in value
        }
    )


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _value(hint: Any, value: Any, where: str) -> Any:
    """Return a value of the type that a hint names."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if isinstance(hint, type) and is_dataclass(hint):
        return parsed(hint, value, where)
    if origin in (Union, UnionType):
        return None if value is None else _value(arguments[0], value, where)
    if origin is Literal:
        # True equals 1
        is_one = any(value == one and type(value) is type(one) for one in arguments)
        return _required(
            is_one, value, where, f"one of {', '.join(map(repr, arguments))}"
        )
    if origin is tuple:
        _required(isinstance(value, list), value, where, "a list")
        return tuple(
            _value(arguments[0], one, f"{where}[{at}]") for at, one in enumerate(value)
        )
    if origin is dict:
        _required(isinstance(value, dict), value, where, "an object")
        return {
            name: _value(arguments[1], one, f"{where}.{name}")
            for name, one in value.items()
        }
    is_kind, words = _KINDS[hint]
    return hint(_required(is_kind(value), value, where, words))


def _required(is_right: bool, value: Any, where: str, words: str) -> Any:
    if not is_right:
        raise Wrong(f"{where} must be {words}, got {_shown(value)}")
    return value


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    )


_KINDS: dict[type, tuple[Callable[[Any], bool], str]] = {
    str: (lambda value: isinstance(value, str), "a string"),
    int: (
        lambda value: isinstance(value, int) and not isinstance(value, bool),
        "a whole number",
    ),
    float: (_is_number, "a number"),
}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
