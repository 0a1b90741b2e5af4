"""JSON schemas rewritten in the keywords that xgrammar enforces, where there are such.

What cannot be rewritten stays as it is, and schema.py refuses it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from foreword.structured.schema import is_of

Schema = dict[str, Any]

MOST_VALUES = 256
"""Values that a keyword may be written out as."""
MOST_UNIQUE = 5
"""Values of the items of a list without duplicates; they have 326 orders."""
DEEPEST = 64
"""Levels. References that are followed while schemas are merged."""
BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
PATTERNS = {"ipv4": rf"^{BYTE}\.{BYTE}\.{BYTE}\.{BYTE}$"}
"""Formats that xgrammar reads too widely (it allows 01.2.3.4) -> a pattern."""
LARGER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
SMALLER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
"""Bounds: of two, the stricter one holds."""
ANNOTATIONS = ("title", "description", "default", "examples", "$comment", "$id")


MOST_STEPS = 20_000
"""Parts that are looked at. Schemas that refer to each other may unfold without end."""


class CannotMergeError(Exception):
    """Two schemas that no single one says together."""


@dataclass(slots=True)
class Root:
    """The whole schema, in which references are looked up."""

    schema: Any
    steps: int = 0

    def step(self) -> None:
        """Count a part. Raises ValueError beyond MOST_STEPS."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise ValueError("the schema unfolds too far")


def rewritten(schema: Any) -> Any:
    """Return a schema with its parts rewritten; a wrong one, or one that takes too many
    steps, stays as it is: it is refused where it is checked or compiled.
    """
    try:
        return _rewritten(schema, Root(schema))
    except (CannotMergeError, AttributeError, TypeError, ValueError, RecursionError):
        return schema


def _rewritten(schema: Any, root: Root) -> Any:
    root.step()
    if isinstance(schema, list):
        return [_rewritten(part, root) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    schema = _merged_all(dict(schema), root)
    schema = {key: _nested(key, value, root) for key, value in schema.items()}
    for rewrite in (_format, _unique, _multiples):
        schema = rewrite(schema)
    return schema


def _nested(key: str, value: Any, root: Root) -> Any:
    """Return the value of a keyword with the schemas in it rewritten."""
    if key in ("enum", "const", "default", "examples"):
        return value
    if key in ("properties", "patternProperties", "$defs", "definitions"):
        if not isinstance(value, Mapping):
            return value
        return {name: _rewritten(part, root) for name, part in value.items()}
    return _rewritten(value, root) if isinstance(value, Mapping | list) else value


def _format(schema: Schema) -> Schema:
    pattern = PATTERNS.get(str(schema.get("format")))
    if pattern is None or schema.get("type") != "string" or "pattern" in schema:
        return schema
    rest = {key: value for key, value in schema.items() if key != "format"}
    return {**rest, "pattern": pattern}


def _unique(schema: Schema) -> Schema:
    """Write out the lists without duplicates of a few values."""
    if schema.get("uniqueItems") is not True or schema.get("type") != "array":
        return schema
    values = _values(schema.get("items"))
    least = schema.get("minItems", 0)
    most = schema.get("maxItems", MOST_UNIQUE)
    if most in (0, 1):
        return {key: value for key, value in schema.items() if key != "uniqueItems"}
    if values is None or "prefixItems" in schema or len(values) > MOST_UNIQUE:
        return schema
    lengths = range(least, min(most, len(values)) + 1)
    lists = [_list_of(one) for size in lengths for one in permutations(values, size)]
    return {"anyOf": lists} | _annotations(schema)


def _list_of(values: Sequence[Any]) -> Schema:
    """Return the schema of the list with these values."""
    if not values:
        return {"type": "array", "maxItems": 0}
    constants = [{"const": value} for value in values]
    return {
        "type": "array",
        "prefixItems": constants,
        "items": False,
        "minItems": len(values),
    }


def _values(items: Any) -> list[Any] | None:
    """Return the values that items may have, if they are few."""
    if not isinstance(items, Mapping):
        return None
    if isinstance(items.get("enum"), list):
        return items["enum"]
    return [False, True] if items.get("type") == "boolean" else None


def _multiples(schema: Schema) -> Schema:
    """Write out the multiples within two bounds."""
    step = schema.get("multipleOf")
    if schema.get("type") != "integer" or not isinstance(step, int) or step < 1:
        return schema
    low = max(
        schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf) + 1
    )
    high = min(
        schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf) - 1
    )
    if not (high - low) / step <= MOST_VALUES:
        return schema
    first, last = math.ceil(low / step), math.floor(high / step)
    values = [step * number for number in range(first, last + 1)]
    return {"enum": values} | _annotations(schema)


def _annotations(schema: Schema) -> Schema:
    return {key: schema[key] for key in ANNOTATIONS if key in schema}


# ---- allOf


def _merged_all(schema: Schema, root: Root) -> Schema:
    """Return a schema with the parts of its `allOf` merged into it, if they can be."""
    parts = schema.get("allOf")
    if not isinstance(parts, list) or (len(parts) < 2 and len(schema) == 1):
        return schema
    try:
        return _resolved(schema, root)
    except CannotMergeError:
        return schema


def _resolved(schema: Any, root: Root, deep: int = 0) -> Schema:
    """Return a schema without `$ref` and `allOf` at its top."""
    root.step()
    if not isinstance(schema, Mapping) or deep > DEEPEST:
        raise CannotMergeError
    if "allOf" in schema:
        merged: Schema = {}
        for part in schema["allOf"]:
            merged = _merged(merged, _resolved(part, root, deep + 1), root)
        # last, as answers have properties in this order
        siblings = {key: value for key, value in schema.items() if key != "allOf"}
        return _merged(merged, siblings, root)
    if "$ref" not in schema:
        return dict(schema)
    reference = str(schema["$ref"])
    node = root.schema
    for name in reference.removeprefix("#/").split("/"):
        node = node.get(name) if isinstance(node, Mapping) else None
    siblings = {key: value for key, value in schema.items() if key != "$ref"}
    return _merged(_resolved(node, root, deep + 1), siblings, root)


def _merged(first: Schema, second: Schema, root: Root) -> Schema:
    """Return the schema of values of both. CannotMergeError if none is known."""
    root.step()
    merged = dict(first)
    for key, value in second.items():
        merged[key] = _both(key, merged[key], value, root) if key in merged else value
    _check_closed(first, second)
    _check_closed(second, first)
    if "enum" in merged and "type" in merged:
        values = merged["enum"]
        merged["enum"] = [one for one in values if is_of(one, merged["type"])]
    return merged


def _both(key: str, first: Any, second: Any, root: Root) -> Any:
    """Return the value of a keyword that both schemas have."""
    if first == second or key in ANNOTATIONS:
        return second
    if key in LARGER:
        return max(first, second)
    if key in SMALLER:
        return min(first, second)
    if key == "required":
        return list(dict.fromkeys([*first, *second]))
    if key == "type":
        return _common_type(first, second)
    if key == "enum":
        return [value for value in first if value in second]
    if key in ("properties", "$defs", "definitions"):
        joined = dict(first)
        for name, part in second.items():
            joined[name] = _part(joined[name], part, root) if name in joined else part
        return joined
    if key in ("items", "additionalProperties"):
        return _part(first, second, root)
    raise CannotMergeError


def _part(first: Any, second: Any, root: Root) -> Any:
    """Return the schema of values that follow both; a schema may be a truth value."""
    if first is False or second is False:
        return False
    if first is True or second is True:
        return second if first is True else first
    return _merged(_resolved(first, root), _resolved(second, root), root)


def _common_type(first: Any, second: Any) -> Any:
    ours = first if isinstance(first, list) else [first]
    theirs = second if isinstance(second, list) else [second]
    common = [name for name in ours if name in theirs]
    if not common and {*ours, *theirs} >= {"integer", "number"}:
        common = ["integer"]
    if not common:
        raise CannotMergeError
    return common[0] if len(common) == 1 else common


def _check_closed(first: Schema, second: Schema) -> None:
    """Raise CannotMergeError if `first` says something about properties that it does
    not name, and `second` names such properties.
    """
    is_open = first.get("additionalProperties", True) is True
    if is_open and "patternProperties" not in first:
        return
    properties = first.get("properties", {})
    if any(name not in properties for name in second.get("properties", {})):
        raise CannotMergeError
