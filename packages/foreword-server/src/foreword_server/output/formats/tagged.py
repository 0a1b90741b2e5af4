"""<tool_call> with a tag for each argument, by templates of Qwen3-Coder and GLM 4.5."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from foreword.chats import Function
from foreword_server.output.formats import grammar
from foreword_server.output.formats.base import AnyForm, Tag

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, kw_only=True)
class Tagged(AnyForm):
    """Tags for the function and for each argument."""

    name: str
    signs: tuple[str, ...]
    """Texts that a chat template of this format has."""
    begin: str
    """Text around the name, which is {}."""
    end: str
    style: str
    """Name of the form of arguments, in xgrammar."""
    value_end: str
    """Tag that no string may hold, as it ends one."""
    markers = (_OPEN, _CLOSE)

    def used_by(self, template: str) -> bool:
        """Return whether the template shows such tags."""
        return all(sign in template for sign in self.signs)

    def forced(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of tagged calls, one after the other."""
        return grammar.separated(self._tag(functions, special), "\n", parallel=parallel)

    def allowed(
        self, functions: Sequence[Function], *, parallel: bool, special: Collection[str]
    ) -> Tag:
        """Return the grammar of content with tagged calls."""
        frame = self._tag(functions, special)
        return grammar.triggered(_OPEN, frame, special, parallel=parallel)

    def _tag(self, functions: Sequence[Function], special: Collection[str]) -> Tag:
        def call(function: Function) -> Tag:
            begin = grammar.const(self.begin.format(function.name))
            values = grammar.arguments(
                function, style=self.style, excludes=[self.value_end]
            )
            return grammar.sequence(begin, values, grammar.const(self.end))

        return grammar.tag(_OPEN, grammar.one_of(functions, call), _CLOSE, special)


QWEN_CODER = Tagged(
    name="qwen-coder",
    signs=("<function=", "<parameter="),
    begin="\n<function={}>\n",
    end="\n</function>\n",
    style="qwen_xml",
    value_end="</parameter>",
)
GLM = Tagged(
    name="glm",
    signs=(_OPEN, "<arg_key>"),
    begin="{}\n",
    end="\n",
    style="glm_xml",
    value_end="</arg_value>",
)
