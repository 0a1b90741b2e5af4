"""A token before and after each call, and before its arguments: DeepSeek V3.1, Kimi K2.

Source: their chat templates.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from foreword.chats import Function
from foreword_server.output.formats import grammar
from foreword_server.output.formats.base import AnyForm, Tag
from foreword_server.output.forms.marked import DEEPSEEK, KIMI, Marks


@dataclass(frozen=True, kw_only=True)
class Marked(AnyForm):
    """Calls between tokens of their own."""

    name: str
    marks: Marks
    begin: str = ""
    """Text before a name."""
    number: str = ""
    """Text after it."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the tokens."""
        marks = self.marks
        return (marks.begin, marks.end, marks.call, marks.call_end, marks.arguments)

    def used_by(self, template: str) -> bool:
        """Return whether the template has the token that begins calls."""
        return self.marks.begin in template

    def forced(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of calls between the tokens that begin and end them."""
        marks = self.marks

        def call(function: Function) -> Tag:
            name = self.begin + function.name + self.number
            return grammar.sequence(
                grammar.const(name),
                grammar.token(marks.arguments, special),
                grammar.arguments(function),
            )

        frame = grammar.tag(
            marks.call, grammar.one_of(functions, call), marks.call_end, special
        )
        calls = grammar.separated(frame, "", parallel=parallel)
        return grammar.tag(marks.begin, calls, marks.end, special)

    def allowed(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of content with such calls."""
        return grammar.triggered(
            self.marks.begin,
            self.forced(functions, parallel=parallel, special=special),
            special,
            parallel=parallel,
        )


DEEP_SEEK = Marked(name="deepseek", marks=DEEPSEEK)
MOONSHOT = Marked(name="kimi", marks=KIMI, begin="functions.", number=":0")
