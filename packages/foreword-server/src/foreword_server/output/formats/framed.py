"""Formats of a JSON object for each call, which differ in the frame around them.

Source: NousResearch/Hermes-Function-Calling, and the chat templates of the families.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from foreword.chats import Function
from foreword_server.output.formats import grammar
from foreword_server.output.formats.base import AnyForm, Tag


@dataclass(frozen=True, kw_only=True)
class Framed(AnyForm):
    """JSON objects in a frame: one around all of them, or around each."""

    name: str
    signs: tuple[str, ...]
    """A chat template of this format holds any of these texts."""
    foreign: str | None = None
    """Text of the chat templates of another format."""
    open: str
    """Marker, perhaps a special token, that begins calls."""
    close: str = ""
    """Marker that ends them."""
    begin: str = ""
    """Text between the first marker and the calls."""
    end: str = ""
    key: str = '{"name": '
    """Text before a call's name."""
    arguments: str = "arguments"
    joined: str = ", "
    """Text between two calls."""
    is_each: bool = False
    """Whether each call has a frame of its own."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the markers, which may be special tokens."""
        return tuple(marker for marker in (self.open, self.close) if marker)

    def used_by(self, template: str) -> bool:
        """Return whether a chat template asks for this format."""
        if self.foreign and self.foreign in template:
            return False
        return any(sign in template for sign in self.signs)

    def forced(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of one call, or of several if `parallel`."""
        if not self.is_each:
            return self._all(functions, parallel, special)
        frame = self._tag(self._call(functions), special)
        return grammar.separated(frame, self.joined, parallel=parallel)

    def allowed(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of content in which calls that are begun must be right."""
        if self.is_each:
            frame = self._tag(self._call(functions), special)
        else:
            frame = self._all(functions, parallel, special)
        trigger = self.open
        if trigger not in special:
            trigger += self.begin
        return grammar.triggered(trigger, frame, special, parallel=parallel)

    def _all(
        self, functions: Sequence[Function], parallel: bool, special: Collection[str]
    ) -> Tag:
        call = grammar.tag("", self._call(functions), "")
        calls = grammar.separated(call, self.joined, parallel=parallel)
        return self._tag(calls, special)

    def _tag(self, calls: Tag, special: Collection[str]) -> Tag:
        if self.open in special:
            begin = grammar.const(self.begin)
            calls = grammar.sequence(begin, calls) if self.begin else calls
            opener = self.open
        else:
            opener = self.open + self.begin
        if self.close in special:
            ending = grammar.const(self.end)
            calls = grammar.sequence(calls, ending) if self.end else calls
            return grammar.tag(opener, calls, self.close, special)
        return grammar.tag(opener, calls, self.end + self.close, special)

    def _call(self, functions: Sequence[Function]) -> Tag:
        def call(function: Function) -> Tag:
            name = json.dumps(function.name)
            begin = grammar.const(f'{self.key}{name}, "{self.arguments}": ')
            rest = grammar.arguments(function)
            return grammar.sequence(begin, rest, grammar.const("}"))

        return grammar.one_of(functions, call)


HERMES = Framed(
    name="hermes",
    signs=("<tool_call>",),
    open="<tool_call>",
    begin="\n",
    end="\n",
    close="</tool_call>",
    joined="\n",
    is_each=True,
)
MISTRAL = Framed(
    name="mistral",
    signs=("[TOOL_CALLS]",),
    foreign="[ARGS]",
    open="[TOOL_CALLS]",
    begin="[",
    end="]",
)
LLAMA = Framed(
    name="llama",
    signs=("<|python_tag|>", "dictionary of argument name and its value"),
    open='{"name": ',
    key="",
    arguments="parameters",
    joined="; ",
    is_each=True,
)
PHI = Framed(
    name="phi",
    signs=("<|/tool_call|>",),
    open="<|tool_call|>",
    begin="[",
    end="]",
    close="<|/tool_call|>",
)
GRANITE = Framed(
    name="granite", signs=("<|tool_call|>",), open="<|tool_call|>", begin="[", end="]"
)
COMMAND = Framed(
    name="command",
    signs=("<|START_ACTION|>",),
    open="<|START_ACTION|>",
    begin="[",
    end="]",
    close="<|END_ACTION|>",
    key='{"tool_call_id": "0", "tool_name": ',
    arguments="parameters",
)
NEMOTRON = Framed(
    name="nemotron",
    signs=("<TOOLCALL>",),
    open="<TOOLCALL>",
    begin="[",
    end="]",
    close="</TOOLCALL>",
)
GENERIC = Framed(name="generic", signs=(), open='{"tool_calls": [', close="]}")
"""For a template that knows no tools, or writes calls in a form that is not known here;
the text that asks a model for it is `foreword.chats.instruction`.
"""
