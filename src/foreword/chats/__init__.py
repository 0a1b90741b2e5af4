"""Chats: messages and tools as clients send them, made ready for a chat template."""

from foreword.chats.instruction import instructed, instruction
from foreword.chats.messages import Message, conversation
from foreword.chats.templates import Options, check_options, check_roles, knows_tools, readings, template_of
from foreword.chats.tools import Function, Tool, functions_of

__all__ = [
    "Function",
    "Message",
    "Options",
    "Tool",
    "check_options",
    "check_roles",
    "conversation",
    "functions_of",
    "instructed",
    "instruction",
    "knows_tools",
    "readings",
    "template_of",
]
