"""The parser of one output as it arrives: reasoning, content and tool calls."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress

from foreword.chats import Function
from foreword_server.output.calls import Calls, LastCall, call_id
from foreword_server.output.events import Event, Markup, Reasoning, Text, merged
from foreword_server.output.formats.base import Format
from foreword_server.output.forms import python
from foreword_server.output.reader import SPACE, Ended, Mismatch, Reader, Reading
from foreword_server.output.reasoning import ReasoningTags


class OutputParser:
    """Incremental parser: `push` text, then `finish`; both return events.

    All events together are the output: the `text` of Text, Reasoning, Markup and
    ToolArguments, concatenated, is the text that was pushed. The joined events
    (`merged`) do not depend on how it was cut.

    format: None reads no calls. functions: a call of another one is content. reasoning:
    its tags, None reads none. in_reasoning: whether the prompt has opened reasoning.
    parallel: False stops after the first call. forced: whether all but reasoning is a
    call, so that the beginning of one is not content.
    """

    def __init__(
        self,
        format: Format | None = None,
        functions: Sequence[Function] = (),
        *,
        reasoning: ReasoningTags | None = None,
        in_reasoning: bool = False,
        parallel: bool = True,
        forced: bool = False,
        new_id: Callable[[], str] = call_id,
    ) -> None:
        self._reader = Reader()
        schemas = {function.name: function.parameters for function in functions}
        self._calls = Calls(self._reader, schemas, parallel, new_id)
        self._format, self._tags = format if functions else None, reasoning
        self._openers = (
            *(self._format.openers if self._format else ()),
            *((reasoning.open,) if reasoning else ()),
        )
        self._kind: Callable[[str], Event] = Text
        self._forced = forced
        self.stopped = False
        """Whether the only call that was allowed has ended: later text is dropped, so
        generation may end.
        """
        self._grammar = self._run(in_reasoning)
        next(self._grammar)

    def push(self, text: str) -> list[Event]:
        """Read text and return the events that are now certain."""
        if text and not self.stopped:
            self._reader.feed(text)
            next(self._grammar, None)
        return self._taken()

    def finish(self) -> list[Event]:
        """End the output.

        What is held becomes content or reasoning; what can only be of a call becomes
        markup.
        """
        if not self.stopped:
            with suppress(Ended, LastCall, StopIteration):
                self._grammar.throw(Ended())
                self._grammar.close()
            with suppress(LastCall):
                self._calls.end(complete=False)
            is_frame = self._calls.closing or (self._forced and self._kind is Text)
            self._reader.flush(Markup if is_frame else self._kind)
            self.stopped = True
        return self._taken()

    def _taken(self) -> list[Event]:
        events, self._reader.events = merged(self._reader.events), []
        return events

    def _run(self, in_reasoning: bool) -> Reading[None]:
        try:
            while True:
                if in_reasoning and self._tags:
                    yield from self._space()
                    yield from self._until(Reasoning, (self._tags.close,), self._close)
                    yield from self._space()
                yield from self._lines()
                in_reasoning = yield from self._until(Text, self._openers, self._open)
                if not in_reasoning:
                    yield from self._space()
        except LastCall:
            self.stopped = True

    def _until(
        self,
        kind: Callable[[str], Event],
        tags: Sequence[str],
        read: Callable[[], Reading[bool]],
    ) -> Reading[bool]:
        """Read text as `kind` until `read` succeeds, which can only begin with one of
        the tags; return its result.
        """
        reader, plain = self._reader, _plain(tags)
        self._kind = kind
        while True:
            yield from reader.peek()
            reader.take_run(plain)
            reader.flush(kind)
            before = reader.position
            try:
                yield from reader.space()
                result = yield from read()
            except Mismatch:
                self._calls.end(complete=False)
                self._calls.closing = False
                if before == reader.position:
                    yield from reader.peek()
                    reader.take()
                reader.flush(kind)
            else:
                self._calls.closing = False
                reader.flush(Markup)
                return result

    def _open(self) -> Reading[bool]:
        """Read calls after an opener, or a tag; return whether reasoning begins."""
        opener = yield from self._reader.one_of(self._openers)
        if self._format is None or opener not in self._format.openers:
            return True
        yield from self._format.read(opener, self._calls)
        return False

    def _lines(self) -> Reading[None]:
        """Read calls in Python that an answer begins with."""
        reader = self._reader
        if self._format is None:
            return
        self._kind = Text
        try:
            yield from reader.space()
            yield from python.lines(self._calls)
        except Mismatch:
            self._calls.closing = False
            reader.flush(Text)

    def _close(self) -> Reading[bool]:
        assert self._tags
        yield from self._reader.literal(self._tags.close)
        return False

    def _space(self) -> Reading[None]:
        """Read the white space beside a frame, as part of it."""
        self._reader.live = Markup
        yield from self._reader.space()
        self._reader.settle()
        self._reader.live = None


def _plain(tags: Sequence[str]) -> re.Pattern[str]:
    """Return the pattern of characters that neither begin nor precede a tag."""
    if not tags:
        return re.compile(".+", re.DOTALL)
    return re.compile(f"[^{re.escape(SPACE + ''.join(tag[0] for tag in tags))}]+")
