"""Answer to one request while it is generated, before any dialect: choices, their
parts, counts and times.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter, time
from typing import Any

from foreword.api.job import Job
from foreword.api.llm import LLM
from foreword.chats.prompts import Rendered, ids_of
from foreword.recording.making import recorded
from foreword.types import (
    Completion,
    Delta,
    Request,
    Round,
    SamplingParams,
    TokenLogprob,
)
from foreword_server.output import (
    OutputParser,
    Reasoning,
    Text,
    ToolArguments,
    ToolCall,
)

Shown = Text | Reasoning | ToolCall | ToolArguments
"""Events that clients see; the parser's others are tags and ends of calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A translated request: what the engine needs, and how its output is read."""

    prompts: Sequence[Rendered]
    params: SamplingParams
    model: str
    """Name to report."""
    method: str
    parser: Callable[[], OutputParser]
    stream: bool = False
    scored: int | None = None
    """Likeliest tokens to list with each prompt token; None: prompts are not scored."""
    generates: bool = True
    """False if only the prompts are scored."""


@dataclass(slots=True)
class Called:
    """A tool call of a choice."""

    id: str
    name: str
    arguments: str = ""
    """JSON text."""


@dataclass(slots=True, eq=False)
class Choice:
    """One request of the answer and what was parsed from its text."""

    index: int
    request: Request
    parser: OutputParser
    text: str = ""
    reasoning: str = ""
    calls: list[Called] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    """Rounds, if the request traces them."""
    first: float | None = None
    """perf_counter() at the first token."""
    last: float = 0.0
    ended: bool = False
    reasoning_tokens: int = 0

    def push(self, delta: Delta) -> list[Shown]:
        """Read one delta; return the events that became certain."""
        self.last = perf_counter()
        self.first = self.last if self.first is None else self.first
        self.logprobs += delta.logprobs
        if delta.round is not None:
            self.rounds.append(delta.round)
        events = self.parser.push(self._text(delta))
        if delta.finish_reason is not None or self.parser.stopped:
            self.ended = True
            events += self.parser.finish()
        shown = [event for event in events if isinstance(event, Shown)]
        for event in shown:
            self._keep(event)
        if any(isinstance(event, Reasoning) for event in shown) and not self.text:
            self.reasoning_tokens += len(delta.tokens)
        return shown

    def _text(self, delta: Delta) -> str:
        """Return the text of a delta; where special tokens are kept, for tags among
        them, without end-of-text.
        """
        params = self.request.params
        ends = (
            delta.finish_reason == "stop"
            and delta.tokens[-1] in self.request.eos
            and not params.ignore_eos
        )
        return (
            "".join(delta.pieces[:-1])
            if ends and not params.skip_special_tokens
            else delta.text
        )

    def _keep(self, event: Shown) -> None:
        match event:
            case Text(text):
                self.text += text
            case Reasoning(text):
                self.reasoning += text
            case ToolCall():
                self.calls.append(Called(event.id, event.name))
            case ToolArguments():
                self.calls[event.index].arguments += event.json

    @property
    def finish_reason(self) -> str:
        """Return "stop", "length" or "tool_calls"; an aborted choice is stopped."""
        reason = self.request.finish_reason or "stop"
        if self.calls and reason != "length":
            return "tool_calls"
        return "stop" if reason == "abort" else reason

    @property
    def tokens(self) -> int:
        """Tokens generated."""
        return self.request.produced


class Answer:
    """The choices of a request: iterating yields (choice, events, delta) by round."""

    def __init__(
        self,
        call: Call,
        job: Job,
        request_id: str,
        arrived: float,
        end: Callable[[Request], None],
        llm: LLM,
        *,
        hidden: Callable[[str], str] = str,
    ) -> None:
        """`arrived`: perf_counter() when the request came. `end` ends a request early.
        `llm` made the answer.

        `hidden` returns a text without the folders of this machine.
        """
        self.call = call
        self.request_id = request_id
        self.arrived = arrived
        self.created = int(time())
        self.choices = [
            Choice(number, request, call.parser())
            for number, request in enumerate(job.requests)
        ]
        self.scores: list[list[TokenLogprob | None]] = []
        """Log-probabilities of each prompt, where the request asked for them."""
        self._job = job
        self._end = end
        self._llm = llm
        self._hidden = hidden

    async def __aiter__(self) -> AsyncIterator[tuple[Choice, list[Shown], Delta]]:
        by_id = {choice.request.id: choice for choice in self.choices}
        async for request, delta in self._job:
            choice = by_id[request.id]
            if choice.ended:
                continue
            yield choice, choice.push(delta), delta
            if choice.ended and delta.finish_reason is None:
                self._end(request)

    def recording(self, choice: Choice) -> dict[str, Any]:
        """Return the recording of a traced choice, without its rounds."""
        request = choice.request
        text = "".join(piece for one in choice.rounds for piece in one.pieces)
        prompt = self.call.prompts[self.prompt_of(choice)]
        reason = request.finish_reason or "abort"
        completion = Completion(
            text,
            request.tokens[request.prompt :],
            reason,
            request.seed,
            request.stats,
            ids_of(prompt),
            rounds=choice.rounds,
        )
        whole = asdict(
            replace(recorded(self._llm, self.call.params, completion), rounds=())
        )
        del whole["rounds"]
        return whole

    def prompt_of(self, choice: Choice) -> int:
        """Return the number of the choice's prompt."""
        return choice.index // self.call.params.n

    @property
    def resumes(self) -> bool:
        """Whether another process goes on with the same text: this backend reads a text
        again with the same bits. Pages that are reserved whole say that it may not.
        """
        pool = self._llm.target.backend.pool
        return pool is None or not pool.adjacent

    @property
    def drafting_failed(self) -> str | None:
        """Return why the answer was not drafted, if its drafter failed."""
        reasons = (choice.request.undrafted for choice in self.choices)
        failed = next(filter(None, reasons), None)
        return failed and self._hidden(failed)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; a prompt with several answers counts once."""
        return sum(map(len, self.call.prompts))

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were taken from the cache and not read."""
        return sum(
            choice.request.stats.cached
            for choice in self.choices[:: self.call.params.n]
        )

    @property
    def prompt_tokens_read(self) -> int:
        """Tokens of the prompts that are read, or were taken from the cache."""
        firsts = self.choices[:: self.call.params.n]
        return sum(
            min(choice.request.cached, choice.request.prompt) for choice in firsts
        )

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning, in whole rounds."""
        return sum(choice.reasoning_tokens for choice in self.choices)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all choices."""
        return sum(choice.tokens for choice in self.choices)
