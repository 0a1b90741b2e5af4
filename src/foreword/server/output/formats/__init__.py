"""Tool call formats, one file each, by name and by chat template."""

from __future__ import annotations

from collections.abc import Collection

from foreword.chats import knows_tools
from foreword.errors import InvalidRequest
from foreword.server.output.formats.base import Format
from foreword.server.output.formats.generic import Generic
from foreword.server.output.formats.hermes import Hermes
from foreword.server.output.formats.llama import Llama
from foreword.server.output.formats.mistral import Mistral, MistralArgs
from foreword.server.output.formats.qwen_coder import QwenCoder
from foreword.server.output.reasoning import ReasoningTags

FORMATS: dict[str, Format] = {
    one.name: one
    for one in (QwenCoder(), Hermes(), MistralArgs(), Mistral(), Llama(), Generic())
}
"""All formats, in the order in which a template is compared with them."""


def format_of(template: str | None) -> Format | None:
    """Return the format that a chat template asks for; None if it knows tools in a
    format that is not known here.

    A template that knows no tools, or none at all, gives "generic".
    """
    if not knows_tools(template):
        return FORMATS["generic"]
    return next(
        (one for one in FORMATS.values() if template and one.used_by(template)), None
    )


def named_format(name: str) -> Format:
    """Return a format. Raises InvalidRequest for an unknown name."""
    if name not in FORMATS:
        raise InvalidRequest(
            f"cannot use the tool format {name!r}: it is unknown. Use one of "
            f"{', '.join(FORMATS)}"
        )
    return FORMATS[name]


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
