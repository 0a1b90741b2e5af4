"""Chats: messages and tools as clients send them, made ready for a chat template."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foreword.chats.encoding import encoded, encoded_images
    from foreword.chats.images import image_of, image_reader, is_image
    from foreword.chats.instruction import instructed
    from foreword.chats.messages import Message, conversation, images_of
    from foreword.chats.sanitize import check_sanitizing, marked
    from foreword.chats.templates import (
        Options,
        check_options,
        check_roles,
        in_parts,
        knows_tools,
        readings,
        template_of,
    )
    from foreword.chats.tools import Function, Tool, functions_of

_NAMES = {
    "encoding": "encoded encoded_images",
    "images": "image_of image_reader is_image",
    "instruction": "instructed",
    "messages": "Message conversation images_of",
    "sanitize": "check_sanitizing marked",
    "templates": (
        "Options check_options check_roles in_parts knows_tools readings template_of"
    ),
    "tools": "Function Tool functions_of",
}
"""Names by the module that has them."""
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Function",
    "Message",
    "Options",
    "Tool",
    "check_options",
    "check_roles",
    "check_sanitizing",
    "conversation",
    "encoded",
    "encoded_images",
    "functions_of",
    "image_of",
    "image_reader",
    "images_of",
    "in_parts",
    "instructed",
    "is_image",
    "knows_tools",
    "marked",
    "readings",
    "template_of",
]


def __getattr__(name: str) -> object:
    """Import a name on first use, as a prompt without messages needs none."""
    if name not in _HOME:
        raise AttributeError(f"module 'foreword.chats' has no attribute {name!r}")
    return getattr(import_module(f"foreword.chats.{_HOME[name]}"), name)
