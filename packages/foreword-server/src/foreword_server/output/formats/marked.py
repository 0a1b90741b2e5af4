"""A token before each call, and before its arguments: DeepSeek V3.1, Kimi K2, Mistral
Small 3.2, Magistral.

Source: their chat templates.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from foreword.chats import Function
from foreword_server.output.formats import grammar
from foreword_server.output.formats.base import AnyForm, Tag
from foreword_server.output.forms.marked import DEEPSEEK, ID, KIMI, MISTRAL, Marks


@dataclass(frozen=True, kw_only=True)
class Marked(AnyForm):
    """Calls between tokens of their own."""

    name: str
    marks: Marks
    signs: tuple[str, ...]
    """A chat template of this format holds all of these texts."""
    others: tuple[str, ...] = ()
    """Further markers."""
    begin: str = ""
    """Text before a name."""
    number: str = ""
    """Text after it."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the tokens."""
        marks = self.marks
        around = (marks.begin, marks.end, marks.call, marks.call_end)
        return (*filter(None, around), marks.arguments, *self.others)

    def used_by(self, template: str) -> bool:
        """Return whether the template has the tokens of this format."""
        return all(sign in template for sign in self.signs)

    def forced(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of calls, in the tokens around all if there are any."""
        marks = self.marks
        frame = self._frame(functions, special)
        calls = grammar.separated(frame, "", parallel=parallel)
        if not marks.begin:
            return calls
        return grammar.tag(marks.begin, calls, marks.end, special)

    def allowed(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of content with such calls."""
        if trigger := self.marks.begin:
            frame = self.forced(functions, parallel=parallel, special=special)
        else:
            trigger, frame = self.marks.call, self._frame(functions, special)
        return grammar.triggered(trigger, frame, special, parallel=parallel)

    def _frame(self, functions: Sequence[Function], special: Collection[str]) -> Tag:
        """Return the grammar of one call."""
        marks = self.marks

        def call(function: Function) -> Tag:
            name = self.begin + function.name + self.number
            return grammar.sequence(
                grammar.const(name),
                grammar.token(marks.arguments, special),
                grammar.arguments(function),
            )

        return grammar.tag(
            marks.call, grammar.one_of(functions, call), marks.call_end, special
        )


DEEP_SEEK = Marked(name="deepseek", marks=DEEPSEEK, signs=(DEEPSEEK.begin,))
MOONSHOT = Marked(
    name="kimi", marks=KIMI, signs=(KIMI.begin,), begin="functions.", number=":0"
)
MISTRAL_ARGS = Marked(
    name="mistral-args",
    marks=MISTRAL,
    signs=(MISTRAL.call, MISTRAL.arguments),
    others=(ID,),
)
