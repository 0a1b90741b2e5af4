"""Translates constraints on answers, as APIs spell them, to sampling parameters."""

import re
from collections.abc import Mapping
from typing import Any

from foreword.errors import InvalidRequest
from foreword.types.constraint import json_text, text

GUIDED = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_grammar": "grammar",
    "guided_choice": "choice",
    "json_schema": "json_schema",
    "grammar": "grammar",
    "regex": "regex",
    "ebnf": "grammar",
}
"""Fields of vLLM, llama.cpp and SGLang -> parameter."""
STRUCTURED = {
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "grammar": "grammar",
}
"""Members of vLLM's `structured_outputs` -> parameter."""


def constraint(response_format: Any, more: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the parameters of a constraint; empty without one.

    `response_format`: OpenAI's, of chat or of responses. `more`: fields that are not
    OpenAI's. Raises InvalidRequest for a format that is not known.
    """
    if not isinstance(response_format, Mapping | None):
        raise InvalidRequest(
            "cannot read the format of the answer: it must be an object, not "
            f"{response_format!r}"
        )
    parameters = _of_format(response_format or {})
    for name, value in (more or {}).items():
        if value is not None and (parameter := GUIDED.get(name)):
            parameters[parameter] = value
    structured = (more or {}).get("structured_outputs") or {}
    if not isinstance(structured, Mapping):
        raise InvalidRequest("cannot read 'structured_outputs': it must be an object")
    for name, value in structured.items():
        if value is not None and name in (*STRUCTURED, "choice", "structural_tag"):
            parameters[STRUCTURED.get(str(name), str(name))] = value
    if "choice" in parameters:
        parameters["regex"] = _one_of(parameters.pop("choice"))
    return {name: _READ[name](name, value) for name, value in parameters.items()}


def _of_format(form: Mapping[str, Any]) -> dict[str, Any]:
    kind = form.get("type", "text")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema":
        about = form.get("json_schema", form)
        schema = about.get("schema") if isinstance(about, Mapping) else None
        if schema is None:
            raise InvalidRequest(
                "cannot read 'response_format': it has no schema. Give "
                "json_schema.schema"
            )
        return {"json_schema": schema}
    if kind == "structural_tag":
        return {"structural_tag": dict(form)}
    raise InvalidRequest(
        f"cannot read 'response_format': the type {kind!r} is unknown. Use json_schema "
        "or json_object"
    )


def _one_of(choices: Any) -> str:
    """Return the regular expression of a list of texts."""
    if (
        not isinstance(choices, list)
        or not choices
        or not all(isinstance(one, str) and one for one in choices)
    ):
        raise InvalidRequest("cannot read 'guided_choice': it must be a list of texts")
    return "|".join(map(re.escape, choices))


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, got {value!r}")
    return value


_READ = {
    "json_schema": json_text,
    "json_object": _flag,
    "regex": text,
    "grammar": text,
    "structural_tag": json_text,
}
