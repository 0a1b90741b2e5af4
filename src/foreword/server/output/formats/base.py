"""The interface of a tool call format."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from foreword.chats import Function
from foreword.server.output.calls import Calls
from foreword.server.output.reader import Reading

Tag = dict[str, object]
"""A format of xgrammar's structural tags."""


class Format(Protocol):
    """How a family of models writes tool calls.

    name: what users call it.  openers: texts that may begin calls; what else begins with one of them is content.
    markers: tags that a tokenizer may hold as special tokens.
    """

    name: str
    openers: tuple[str, ...]
    markers: tuple[str, ...]

    def used_by(self, template: str) -> bool:
        """Return whether a chat template asks for this format."""
        ...

    def read(self, opener: str, calls: Calls) -> Reading[None]:
        """Read the calls after an opener, the rest of their frame included. Raises Mismatch where they end early."""
        ...

    def forced(self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]) -> Tag:
        """Return the grammar of one call, or of several if `parallel`. `special` holds the special tokens."""
        ...

    def allowed(self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]) -> Tag:
        """Return the grammar of content in which calls that are begun must be right."""
        ...
