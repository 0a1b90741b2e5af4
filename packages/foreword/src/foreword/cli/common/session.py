"""Streaming of one request until its end or Ctrl-C: its output and its statistics."""

import secrets
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, cast

from foreword.cli.common import render
from foreword.types import (
    Completion,
    Delta,
    FinishReason,
    Origin,
    Round,
    SamplingParams,
    Stats,
    TokenLogprob,
)

if TYPE_CHECKING:
    from foreword.api.llm import LLM
    from foreword.chats.prompts import Rendered


@dataclass(slots=True)
class Answer:
    """Output of one request so far."""

    seed: int
    prompt_tokens: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    pieces: list[tuple[str, Origin]] = field(default_factory=list)
    """The text of each token, and its origin."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason = "abort"
    stop_reason: str | int | None = None
    """The stop string or stop token that ended it; None if the end-of-text token or the
    length did.
    """
    seconds: float = 0.0
    """Duration of the request, prefill included."""
    stats: Stats = field(default_factory=Stats)
    """Counts of the request."""
    rounds: list[Round] = field(default_factory=list)
    """Every round so far, if the request is traced."""

    @property
    def text(self) -> str:
        return "".join(piece for piece, _ in self.pieces)

    @property
    def completion(self) -> Completion:
        """The answer as an LLM returns it, with its rounds."""
        return Completion(
            self.text,
            self.tokens,
            self.finish_reason,
            self.seed,
            self.stats,
            self.prompt_tokens,
            rounds=self.rounds,
        )

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C came before the end."""
        return self.finish_reason == "abort"

    def add(self, delta: Delta) -> None:
        """Append the output of one round."""
        self.rounds += [delta.round] if delta.round else []
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs
        self.pieces += zip(delta.pieces, delta.origins, strict=True)
        self.finish_reason = delta.finish_reason or "abort"
        self.stop_reason = delta.stop_reason

    def as_json(self) -> dict[str, object]:
        """Return everything as plain values."""
        ratios = {
            "tokens_per_pass": self.stats.tokens_per_pass,
            "acceptance": self.stats.acceptance,
        }
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "seed": self.seed,
            "seconds": self.seconds,
            "stats": {**asdict(self.stats), **ratios},
            "pieces": [
                {"token": token, "text": text, "origin": origin}
                for token, (text, origin) in zip(self.tokens, self.pieces, strict=True)
            ],
            **(
                {"logprobs": [asdict(one) for one in self.logprobs]}
                if self.logprobs
                else {}
            ),
        }


def follow(
    llm: "LLM",
    prompt: "Rendered",
    params: SamplingParams,
    show: Callable[[Delta], None],
) -> Answer:
    """Stream one completion and pass each delta to `show`. On a terminal, a bar shows
    how much of a long prompt is read.

    Ctrl-C ends it and keeps the output so far.
    """
    from foreword.chats.prompts import ids_of

    if params.seed is None:
        # short enough to type again
        params = replace(params, seed=secrets.randbits(32))
    (request,) = llm.session.prepare(prompt, params)
    answer = Answer(params.seed or 0, ids_of(prompt), stats=request.stats)
    started = perf_counter()
    with ReadingBar(len(prompt)) as bar, suppress(KeyboardInterrupt):
        stream = llm.session.stream(request, bar)
        with closing(cast("Generator[Delta]", stream)) as deltas:
            for delta in deltas:
                bar.end()
                answer.add(delta)
                show(delta)
    answer.seconds = perf_counter() - started
    return answer


LONG = 1024
"""Tokens from which a prompt's reading is shown: about a second of a small model."""


class ReadingBar:
    """A bar of the prompt tokens that are read, for long prompts on a terminal."""

    def __init__(self, tokens: int) -> None:
        self._bar = render.bar(quiet=tokens < LONG)
        self._task = self._bar.add_task("reading the prompt", total=tokens)
        self._runs = False

    def __enter__(self) -> "ReadingBar":
        self._bar.start()
        self._runs = True
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __call__(self, read: int, total: int) -> None:
        """Show that `read` tokens of `total` are read."""
        self._bar.update(self._task, completed=read, total=total)

    def end(self) -> None:
        """Remove the bar: the answer begins."""
        if self._runs:
            self._bar.stop()
        self._runs = False
