"""Constraints of an answer: their parameters and checks of form, without a grammar."""

import json
from collections.abc import Mapping
from typing import Any

from foreword.errors import InvalidRequest, check_unicode

CONSTRAINTS = ("json_schema", "json_object", "regex", "grammar", "structural_tag")
"""Constraint parameters; a request may set one of them."""
LONGEST = 2**18
"""Characters. Compiling more takes seconds and cannot be interrupted."""


def json_text(name: str, value: Any) -> str | None:
    """Return a JSON object, given as a mapping or as text, as text; None stays None."""
    if value is None:
        return None
    try:
        loaded = json.loads(value) if isinstance(value, str) else value
        text = json.dumps(
            dict(loaded) if isinstance(loaded, Mapping) else loaded,
            allow_nan=False,
            ensure_ascii=False,
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"{name} must be a JSON object, as a dict or as text: {error}"
        ) from None
    if not isinstance(loaded, Mapping):
        raise InvalidRequest(
            f"{name} must be a JSON object, as a dict or as text, got {text[:80]}"
        )
    return _checked(name, text)


def text(name: str, value: Any) -> str | None:
    """Return a text that is not empty; None stays None."""
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise InvalidRequest(
            f"{name} must be None or a text that is not empty, got {value!r}"
        )
    return _checked(name, value)


def constraint(params: Any) -> tuple[str, str] | None:
    """Return the name and the text of what the answer must follow; None if it is free.

    Raises InvalidRequest if two are set, or one with a parameter that contradicts it.
    """
    names = [name for name in CONSTRAINTS if getattr(params, name)]
    if not names:
        return None
    if len(names) > 1:
        raise InvalidRequest(
            f"cannot follow both {names[0]} and {names[1]}: an answer has one form. "
            "Set one of them"
        )
    if params.min_tokens:
        raise InvalidRequest(
            f"cannot use min_tokens with {names[0]}: it decides where the answer may "
            "end. Ask for a longest or shortest form there"
        )
    value = getattr(params, names[0])
    return names[0], value if isinstance(value, str) else ""


def _checked(name: str, value: str) -> str:
    if len(value) > LONGEST:
        raise InvalidRequest(
            f"cannot use {name}: it has {len(value)} characters, the limit is "
            f"{LONGEST}. Shorten it"
        )
    return check_unicode(name, value)
