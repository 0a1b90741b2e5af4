"""Tool call formats, by name and by chat template."""

from collections.abc import Collection
from typing import Any

from foreword.chats import knows_tools
from foreword.entries import Registry
from foreword_server.output.formats.base import Format
from foreword_server.output.reasoning import ReasoningTags

TOOL_FORMATS: Registry[Any] = Registry(
    "tool format",
    "foreword.tool_formats",
    f"{__name__}.base:Format",
    {
        "qwen-coder": f"{__name__}.tagged:QWEN_CODER",
        "glm": f"{__name__}.tagged:GLM",
        "deepseek": f"{__name__}.marked:DEEP_SEEK",
        "kimi": f"{__name__}.marked:MOONSHOT",
        "hermes": f"{__name__}.framed:HERMES",
        "mistral-args": f"{__name__}.marked:MISTRAL_ARGS",
        "mistral": f"{__name__}.framed:MISTRAL",
        "phi": f"{__name__}.framed:PHI",
        "granite": f"{__name__}.framed:GRANITE",
        "command": f"{__name__}.framed:COMMAND",
        "nemotron": f"{__name__}.framed:NEMOTRON",
        "llama": f"{__name__}.framed:LLAMA",
        "generic": f"{__name__}.framed:GENERIC",
    },
)
"""Formats of tool calls, in the order in which a chat template is compared."""


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
