"""Outputs: text to events, and grammars that force tool calls."""

from foreword_server.output.choice import allowed_tools, structural_tag
from foreword_server.output.events import (
    Event,
    Markup,
    Reasoning,
    Text,
    ToolArguments,
    ToolCall,
    ToolCallEnd,
    merged,
)
from foreword_server.output.formats import format_of, has_special_tags, named_format
from foreword_server.output.formats.base import Format
from foreword_server.output.parser import OutputParser
from foreword_server.output.reasoning import (
    REASONING,
    ReasoningTags,
    named_reasoning,
    reasoning_of,
)

__all__ = [
    "REASONING",
    "Event",
    "Format",
    "Markup",
    "OutputParser",
    "Reasoning",
    "ReasoningTags",
    "Text",
    "ToolArguments",
    "ToolCall",
    "ToolCallEnd",
    "allowed_tools",
    "format_of",
    "has_special_tags",
    "merged",
    "named_format",
    "named_reasoning",
    "reasoning_of",
    "structural_tag",
]
