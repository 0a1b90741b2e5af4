"""[TOOL_CALLS]name[ARGS]{…} for each call: Mistral Small 3.2, Magistral.

Source: the chat template of Mistral Small 3.2.
"""

from collections.abc import Collection, Sequence

from foreword.chats import Function
from foreword_server.output.formats import grammar
from foreword_server.output.formats.base import AnyForm, Tag
from foreword_server.output.forms.marked import ARGS, ID

_OPENER = "[TOOL_CALLS]"


class MistralArgs(AnyForm):
    """A marked name and its arguments for each call."""

    name = "mistral-args"
    markers = (_OPENER, ARGS, ID)

    def used_by(self, template: str) -> bool:
        """Return whether the template has the marker of arguments."""
        return _OPENER in template and ARGS in template

    def forced(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of calls without anything between them."""
        return grammar.separated(_tag(functions, special), "", parallel=parallel)

    def allowed(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of content with calls."""
        return grammar.triggered(
            _OPENER, _tag(functions, special), special, parallel=parallel
        )


def _tag(functions: Sequence[Function], special: Collection[str]) -> Tag:
    def call(function: Function) -> Tag:
        name, marker = grammar.const(function.name), grammar.token(ARGS, special)
        return grammar.sequence(name, marker, grammar.arguments(function))

    return grammar.tag(_OPENER, grammar.one_of(functions, call), "", special)


FORMAT = MistralArgs()
