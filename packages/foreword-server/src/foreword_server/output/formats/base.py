"""The interface of a tool call format, and what all formats of ours have in common."""

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

from foreword.chats import Function
from foreword_server.output import forms
from foreword_server.output.calls import Calls
from foreword_server.output.reader import Reading

Tag = dict[str, object]
"""A format of xgrammar's structural tags."""


@runtime_checkable
class Format(Protocol):
    """How a family of models writes tool calls.

    A call that is begun and not finished as the format wants it is content.
    """

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    @property
    def openers(self) -> tuple[str, ...]:
        """Texts that may begin calls."""
        ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Tags that a tokenizer may hold as special tokens."""
        ...

    def used_by(self, template: str) -> bool:
        """Return whether a chat template asks for this format."""
        ...

    def read(self, opener: str, calls: Calls) -> Reading[None]:
        """Read the calls after an opener, and their frame. Raises Mismatch."""
        ...

    def forced(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of a call, or several; `special`: special tokens."""
        ...

    def allowed(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of content in which calls that are begun must be right."""
        ...


class AnyForm:
    """Base of formats that read calls in every form that a model may write."""

    openers = forms.OPENERS

    def read(self, opener: str, calls: Calls) -> Reading[None]:
        """Read the calls after an opener, and the end of their frame."""
        yield from forms.read(opener, calls)
