"""The page of the HTTP API, from the server's own OpenAPI description."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foreword import LLM, SamplingParams
from foreword_server import speech
from foreword_server.app import build_app
from foreword_server.service import Service
from foreword_server.settings import Settings
from website.markdown import cell

HEAD = """# HTTP API

Every path of `foreword serve`, with the fields of its body, from the server's own
description: `GET /openapi.json`. [Serving](../serving.md) says how to start the server,
and which clients work with it. A star marks a field that a request must have.
"""
SHARED = ("Speculative", "Prediction", "StreamOptions")
"""Objects that several bodies hold; they have sections of their own."""
JSON = "application/json"
WORDS = {"OpenAI": "OpenAI's API", "Anthropic": "Anthropic's API", None: "Sound"}
"""Tag of the description -> title of a section; others keep their tag."""


def write(page: Path) -> None:
    """Write the page."""
    text = "\n".join([HEAD, *_sections(describe())])
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text + "\n", encoding="utf-8")


def describe() -> dict[str, Any]:
    """Return the description of a server of the bundled models that takes sound too."""
    service = Service(LLM(method="none"), Settings(), bundled=True)
    app = build_app(service)
    app.include_router(speech.routes(service))
    described = app.openapi()
    service.llm.close()
    return described


def _sections(described: dict[str, Any]) -> Iterator[str]:
    shapes = described["components"]["schemas"]
    tags: dict[str | None, list[str]] = {}
    for path, operations in described["paths"].items():
        for verb, operation in operations.items():
            tag = operation.get("tags", [None])[0]
            lines = tags.setdefault(tag, [])
            lines.extend(_operation(verb, path, operation, shapes))
    for tag in sorted(tags, key=lambda tag: tag not in WORDS):
        yield f"## {WORDS.get(tag, str(tag).capitalize())}"
        yield ""
        yield from tags[tag]
    yield "## Shared fields"
    yield ""
    for name in SHARED:
        yield f"### {name}"
        yield ""
        yield from _fields(shapes[name])


def _operation(verb: str, path: str, operation, shapes) -> Iterator[str]:
    yield f"### {verb.upper()} {path}"
    yield ""
    yield operation.get("description", "")
    yield ""
    parameters = operation.get("parameters", [])
    if parameters:
        yield from _table(
            (one["name"], one["schema"], one.get("description", ""))
            for one in parameters
        )
    body = operation.get("requestBody", {}).get("content", {})
    for kind, content in body.items():
        if kind != JSON:
            yield f"The body is `{kind}`."
            yield ""
        yield from _fields(_shape(content["schema"], shapes))


def _shape(schema: dict[str, Any], shapes: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object, which may stand among the shared ones."""
    if "$ref" in schema:
        return shapes[schema["$ref"].rsplit("/", 1)[-1]]
    return schema


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    needed = schema.get("required", ())
    yield from _table(
        (
            name + (" *" if name in needed else ""),
            field,
            field.get("description") or _sampling(name),
        )
        for name, field in schema.get("properties", {}).items()
    )


def _table(rows) -> Iterator[str]:
    """Yield a table of (name, schema, meaning)."""
    yield "| field | type | meaning |"
    yield "|---|---|---|"
    for name, schema, meaning in rows:
        yield f"| `{name}` | {cell(_kind(schema))} | {cell(meaning)} |"
    yield ""


def _sampling(name: str) -> str:
    """Return where a field that the Python library has too is described."""
    if name in SamplingParams.__dataclass_fields__:
        where = f"python.md#foreword.SamplingParams.{name}"
        return f"[as in `SamplingParams`]({where})"
    return ""


def _kind(schema: dict[str, Any]) -> str:
    """Return the type of a field in words."""
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        kinds = [_kind(one) for one in choices if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})" if name in SHARED else name
    if "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return "list of " + (_kind(schema.get("items", {})) or "anything")
    return str(schema.get("type", ""))
