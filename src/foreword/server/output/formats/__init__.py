"""Tool call formats, by name and by chat template."""

from __future__ import annotations

from collections.abc import Collection

from foreword.chats import knows_tools
from foreword.registry import TOOL_FORMATS
from foreword.server.output.formats.base import Format
from foreword.server.output.reasoning import ReasoningTags


def format_of(template: str | None) -> Format:
    """Return the format that a chat template asks for; "generic" for one that knows no
    tools, or has them in a form that is not known here.
    """
    if template is None or not knows_tools(template):
        return TOOL_FORMATS["generic"]
    known = (one for one in TOOL_FORMATS.values() if one.used_by(template))
    return next(known, TOOL_FORMATS["generic"])


def named_format(name: str) -> Format:
    """Return a format. Raises UnknownMethod for an unknown name."""
    return TOOL_FORMATS.find(name)


def has_special_tags(
    special: Collection[str], format: Format | None, tags: ReasoningTags | None
) -> bool:
    """Return whether a tag is among a tokenizer's special tokens, so that
    `skip_special_tokens` would remove it.
    """
    markers = (
        *(format.markers if format else ()),
        *((tags.open, tags.close) if tags else ()),
    )
    return any(marker in special for marker in markers)
