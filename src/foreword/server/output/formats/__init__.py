"""Tool call formats, one file each, by name and by chat template."""

from __future__ import annotations

from collections.abc import Collection

from foreword.chats import knows_tools
from foreword.registry import TOOL_FORMATS
from foreword.server.output.formats.base import Format
from foreword.server.output.reasoning import ReasoningTags


def format_of(template: str | None) -> Format | None:
    """Return the format that a chat template asks for; None if it knows tools in a
    format that is not known here.

    A template that knows no tools, or none at all, gives "generic".
    """
    if not knows_tools(template):
        return TOOL_FORMATS["generic"]
    return next(
        (one for one in TOOL_FORMATS.values() if template and one.used_by(template)),
        None,
    )


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
