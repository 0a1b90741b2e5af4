"""Chats: messages and tools as clients send them, made ready for a chat template."""

from foreword.chats.encoding import encoded, encoded_images
from foreword.chats.images import image_of, image_reader, is_image
from foreword.chats.instruction import instructed, instruction
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
    "instruction",
    "is_image",
    "knows_tools",
    "marked",
    "readings",
    "template_of",
]
