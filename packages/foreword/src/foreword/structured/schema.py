"""Check of JSON schemas and regular expressions: a part that xgrammar would silently
not enforce is refused.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from foreword.errors import InvalidRequest

DEEPEST = 64
"""Levels. Deepest nesting of a schema."""
WIDEST = 512
"""Properties. Most of one object: the time to compile them grows with their square."""
IGNORED = frozenset(
    "not if then else contains minContains maxContains dependentRequired "
    "dependentSchemas dependencies $dynamicRef $recursiveRef".split()
)
"""Keywords that xgrammar ignores."""
ALONE = ("$ref", "anyOf", "oneOf", "allOf", "const", "enum")
"""Keywords beside which xgrammar ignores every other constraint."""
ANNOTATIONS = frozenset(
    "$schema $id $anchor $comment $defs definitions title description default examples "
    "deprecated readOnly writeOnly nullable discriminator".split()
)
"""Keywords that constrain nothing by themselves."""
TYPED = frozenset(
    "minLength maxLength pattern format minimum maximum exclusiveMinimum "
    "exclusiveMaximum multipleOf minItems maxItems prefixItems minProperties "
    "maxProperties patternProperties propertyNames".split()
)
"""Keywords that are enforced only beside a type."""
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords with a schema for each name."""
NESTED = (
    "items",
    "prefixItems",
    "additionalProperties",
    "propertyNames",
    "anyOf",
    "oneOf",
    "allOf",
)
"""Keywords with a schema or a list of schemas."""
TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[dDwWsSnrtfvab0-9]|[^A-Za-z0-9])", re.DOTALL
)


def check_schema(schema: Any, at: str = "#", deep: int = 0) -> None:
    """Raise InvalidRequest, with the place, if a part would not be enforced."""
    if not isinstance(schema, Mapping):
        return  # true, false, or an error that the compiler reports
    if deep > DEEPEST:
        raise InvalidRequest(
            f"cannot follow this json_schema: it is nested more than {DEEPEST} levels. "
            "Flatten it"
        )
    for problem in (
        *_keyword_problems(schema),
        *_object_problems(schema),
        *_string_problems(schema),
    ):
        raise InvalidRequest(f"cannot follow this json_schema: at {at}, {problem}")
    for name in BY_NAME:
        parts = schema.get(name)
        for key, part in parts.items() if isinstance(parts, Mapping) else ():
            check_schema(part, f"{at}/{name}/{key}", deep + 1)
    for name in NESTED:
        part = schema.get(name)
        for item in part if isinstance(part, list) else [part]:
            check_schema(item, f"{at}/{name}", deep + 1)


def check_regex(pattern: str) -> None:
    """Raise InvalidRequest if a part of this expression would not be enforced."""
    for problem in _regex_problems(pattern):
        raise InvalidRequest(f"cannot follow this regex: {problem}")


def _keyword_problems(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with keywords, whatever type they are for."""
    for name in IGNORED & schema.keys():
        yield f"{name!r} is not supported. Leave it out"
    if schema.get("uniqueItems"):
        yield "'uniqueItems' is not supported. Leave it out"
    alone = [name for name in ALONE if name in schema]
    if alone:
        is_value = alone[0] in ("const", "enum")
        others = (
            schema.keys() - ANNOTATIONS - {alone[0]} - ({"type"} if is_value else set())
        )
        if others:
            yield (
                f"{min(others)!r} has no effect beside {alone[0]!r}. Move it into the "
                "alternatives, or leave it out"
            )
        values = schema.get("enum", [schema.get("const")])
        if is_value and "type" in schema and isinstance(values, list):
            wrong = [value for value in values if not is_of(value, schema["type"])]
            if wrong:
                yield (
                    f"{wrong[0]!r} is not of type {schema['type']!r}. Correct one of "
                    "the two"
                )
    elif "type" not in schema and TYPED & schema.keys():
        yield f"{min(TYPED & schema.keys())!r} has no effect without a type. Add 'type'"
    if len(schema.get("allOf") or ()) > 1:
        yield "'allOf' of several schemas is not supported. Merge them"
    if not str(schema.get("$ref", "#")).startswith("#"):
        yield (
            "'$ref' must point into this schema, as '#/$defs/name'. Copy the schema "
            "that it names"
        )
    if "multipleOf" in schema and (
        "number" in _types(schema) or any(name in schema for name in BOUNDS)
    ):
        yield "'multipleOf' is supported for integers without bounds only. Leave it out"


def _object_problems(schema: Mapping[str, Any]) -> Iterator[str]:
    properties = schema.get("properties")
    names = properties if isinstance(properties, Mapping) else {}
    if len(names) > WIDEST:
        yield f"an object has {len(names)} properties, the limit is {WIDEST}. Split it"
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if name not in names:
            yield (
                f"{name!r} is required but not among the properties. Describe it there"
            )
    if names and "propertyNames" in schema:
        yield "'propertyNames' has no effect beside 'properties'. Leave it out"


def _string_problems(schema: Mapping[str, Any]) -> Iterator[str]:
    forms = [name for name in ("pattern", "format") if name in schema]
    lengths = [name for name in ("minLength", "maxLength") if name in schema]
    if len(forms) + bool(lengths) > 1 and forms:
        yield (
            f"{[*forms, *lengths][1]!r} has no effect beside {forms[0]!r}. Express "
            "both in one pattern"
        )
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        if '"' in pattern or "\\\\" in pattern:
            yield (
                "a pattern cannot hold a quotation mark or a backslash: JSON text has "
                "them escaped. Leave them out"
            )
        yield from _regex_problems(pattern)


def _regex_problems(pattern: str) -> Iterator[str]:
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if (text == "^" and token.start()) or (
            text == "$" and token.end() < len(pattern)
        ):
            yield (
                f"{text!r} is supported at the ends of an expression only. Leave it out"
            )
        for escape in re.finditer(r"\\.?", text, re.DOTALL) if "\\" in text else ():
            if not _ESCAPE.match(pattern, token.start() + escape.start()):
                yield (
                    f"the escape {escape[0]!r} is not supported. Write the character "
                    "itself"
                )


def _types(schema: Mapping[str, Any]) -> list[str]:
    value = schema.get("type")
    return (
        value if isinstance(value, list) else [value] if isinstance(value, str) else []
    )


def is_of(value: object, schema_type: object) -> bool:
    """Return whether a JSON value is of a type, or of one in a list; unknown types are
    the compiler's to report.
    """
    names = schema_type if isinstance(schema_type, list) else [schema_type]
    kinds = [TYPES.get(name, object) for name in names if isinstance(name, str)]
    return any(
        isinstance(value, kind) and (kind is not int or not isinstance(value, bool))
        for kind in kinds
    )
