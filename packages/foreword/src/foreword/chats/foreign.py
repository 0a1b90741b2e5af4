"""Parts of a history that another host wrote, as text: documents, searches, calls of
its own tools.

A thread that began elsewhere goes on here; nothing in it is refused for its kind alone.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

UNSEEN = "[an image, which this model cannot see]"
"""What stands for the image of a tool's result where the model reads text alone."""
UNREAD = "[a document, which this model cannot read]"
LONGEST = 4_096
"""Characters. A longer value without a space is data, such as base64, and left out."""
HIDDEN = ("type", "id", "status", "cache_control", "encrypted_content", "signature")
"""Members that say nothing to a model."""


def as_text(part: Mapping[str, Any]) -> str:
    """Return what a part holds, in words if it has some, else as JSON."""
    kind = str(part.get("type"))
    if kind == "document":
        return _document(part)
    if kind == "search_result":
        lines = _strings([part.get("title"), part.get("source")])
        lines += _texts(part.get("content"))
        return "\n".join(lines)
    if kind == "tool_reference":
        name = part.get("tool_name")
        return f"[the tool {name}]"
    content = {
        name: _short(value)
        for name, value in part.items()
        if name not in HIDDEN and value is not None
    }
    shown = json.dumps(content, ensure_ascii=False) if content else ""
    return f"[{kind}] {shown}".rstrip()


def _document(part: Mapping[str, Any]) -> str:
    """Return the text of Anthropic's document, or what it is if it holds no text."""
    source = part.get("source")
    if not isinstance(source, Mapping):
        source = {}
    lines = _strings([part.get("title"), part.get("context")])
    kind = source.get("type")
    if kind == "text":
        lines += _strings([source.get("data")])
    elif kind == "content":
        lines += _texts(source.get("content"))
    else:
        lines.append(UNREAD)
    return "\n".join(lines)


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, Sequence):
        return []
    parts = [part for part in content if isinstance(part, Mapping)]
    return _strings([part.get("text", as_text(part)) for part in parts])


def _strings(values: Sequence[object]) -> list[str]:
    return [value for value in values if isinstance(value, str) and value]


def _short(value: object) -> object:
    """Return a JSON value without members that say nothing and without data."""
    if isinstance(value, Mapping):
        names = [name for name in value if name not in HIDDEN]
        return {str(name): _short(value[name]) for name in names}
    if isinstance(value, list | tuple):
        return [_short(one) for one in value]
    if isinstance(value, str) and len(value) > LONGEST and " " not in value:
        return f"[{len(value)} characters of data]"
    return value
