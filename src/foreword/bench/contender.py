"""Our engine as a contender: drives it round by round and sees how much of each round models' forwards take.

Knows the engine and its models; knows nothing about prompts, peers or statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from foreword.bench.trial import Request, Round, Trial
from foreword.draft import Drafter
from foreword.engine import Engine
from foreword.errors import DraftError
from foreword.model import Model, Read
from foreword.model.driver import Driver, Growing
from foreword.native.tree import Ask, Grown
from foreword.reader import TextReader
from foreword.types import SamplingParams, Sequence


@dataclass(frozen=True, slots=True)
class Served:
    """Many requests answered, so many at a time."""

    texts: list[list[int]]
    """What was written, request by request."""
    seconds: float
    drafted: int
    accepted: int

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return sum(map(len, self.texts)) / self.seconds


class TimedDriver:
    """A driver that adds up the seconds spent in another one's forwards. On a CPU a forward is over when it returns."""

    def __init__(self, inner: Driver) -> None:
        self.mode, self.copies = inner.mode, inner.copies
        self.seconds = 0.0
        self.reads = 0
        self._inner = inner

    def open(self, id: int, capacity: int) -> None:
        self._inner.open(id, capacity)

    def close(self, id: int) -> None:
        self._inner.close(id)

    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        before = perf_counter()
        logits = self._inner.read(reads)
        self.seconds += perf_counter() - before
        self.reads += 1
        return logits

    def move(self, id: int, source: list[int], start: int) -> None:
        self._inner.move(id, source, start)

    def __getattr__(self, name: str) -> Any:
        """What else the other one offers, as layers that may be skipped. To be overheard it makes a forward too."""
        offered = getattr(self._inner, name)
        return partial(self._overheard, offered) if name == "hear" else offered

    def _overheard(self, hear: Callable[..., tuple[Tensor, Tensor]], *asked: object) -> tuple[Tensor, Tensor]:
        before = perf_counter()
        found = hear(*asked)
        self.seconds += perf_counter() - before
        self.reads += 1
        return found


@runtime_checkable
class _GrowingDriver(Driver, Growing, Protocol):
    """A driver with the fast path for trees."""


class TimedGrowingDriver(TimedDriver):
    """The same for a driver with a fast path for trees: what has the name of a method is believed to offer it."""

    def __init__(self, inner: _GrowingDriver) -> None:
        super().__init__(inner)
        self._growing = inner

    def grow(self, read: Read, ask: Ask) -> Grown:
        before = perf_counter()
        grown = self._growing.grow(read, ask)
        self.seconds += perf_counter() - before
        self.reads += 1 + len(grown.read)
        return grown


def timed(model: Model) -> TimedDriver:
    """The model's driver, timed from now on, with all that it offers; asking twice gives the same one."""
    driver = model.driver
    if not isinstance(driver, TimedDriver):
        model.driver = driver = TimedGrowingDriver(driver) if isinstance(driver, Growing) else TimedDriver(driver)
    return driver


def _models(drafter: Drafter) -> list[Model]:
    """The models that a drafter guesses with, each once, those of its parts included."""
    held = list({id(value): value for value in vars(drafter).values()}.values())
    parts = [part for value in held if isinstance(value, list | tuple) for part in value if isinstance(part, Drafter)]
    parts += [value for value in held if isinstance(value, Drafter)]
    return [value for value in held if isinstance(value, Model)] + [m for part in parts for m in _models(part)]


class EngineContender:
    """Answers one request at a time, text included, as a user's stream would."""

    def __init__(self, name: str, engine: Engine, tokenizer: PreTrainedTokenizerBase) -> None:
        self.name = name
        self._engine, self._tokenizer = engine, tokenizer
        self._target = timed(engine.target)
        self._drafts = [timed(model) for model in _models(engine.drafter)]
        self._ids = count(1)

    def run(self, request: Request) -> Trial:
        """Answer one request. Raises DraftError when the drafter failed: what then ran would not be this method."""
        reads, started = self._target.reads, perf_counter()
        sequence = self._sequence(request)
        self._engine.add(sequence)
        rounds = []
        try:
            while sequence.finish_reason is None:
                rounds.append(self._round(sequence))
        finally:
            if sequence.finish_reason is None:  # a round failed; others read with this target too
                self._engine.abort(sequence)
        seconds = perf_counter() - started
        if self._engine.failed:
            raise DraftError(f"{self.name} failed on {request.name}, so it cannot be measured: {self._engine.failed}")
        return Trial(sequence.tokens[sequence.prompt :], seconds, self._target.reads - reads, tuple(rounds))

    def serve(self, requests: List[Request], slots: int) -> Served:
        """Answer all of them, `slots` at a time, the next one as soon as one has ended. Raises DraftError as `run`."""
        scheduler, sequences = self._engine.scheduler, [self._sequence(request) for request in requests]
        before, scheduler.slots = scheduler.slots, slots
        started = perf_counter()
        try:
            for sequence in sequences:
                self._engine.add(sequence)
            while not self._engine.idle:
                self._engine.step()
        finally:
            scheduler.slots = before
            for sequence in sequences:
                if sequence.finish_reason is None:
                    self._engine.abort(sequence)
        seconds = perf_counter() - started
        if self._engine.failed:
            raise DraftError(f"{self.name} failed, so it cannot be measured: {self._engine.failed}")
        stats, texts = [sequence.stats for sequence in sequences], [one.tokens[one.prompt :] for one in sequences]
        return Served(texts, seconds, sum(one.drafted for one in stats), sum(one.accepted for one in stats))

    def _sequence(self, request: Request) -> Sequence:
        params = SamplingParams(temperature=request.temperature, seed=request.seed, max_tokens=request.max_tokens)
        prompt = list(request.prompt)
        reader = TextReader(self._tokenizer, prompt, (), True)
        return Sequence(next(self._ids), prompt, len(prompt), params, request.seed, self._engine.target.eos, reader)

    def _round(self, sequence: Sequence) -> Round:
        stats, written, reading = sequence.stats, sequence.produced, len(sequence.pending) > 1
        drafted, accepted = stats.drafted, stats.accepted
        target, draft, started = self._target.seconds, self._draft_seconds, perf_counter()
        self._engine.step()
        return Round(
            tokens=sequence.produced - written,
            drafted=stats.drafted - drafted,
            accepted=stats.accepted - accepted,
            seconds=perf_counter() - started,
            clock=self._engine.clock,
            target=self._target.seconds - target,
            draft=self._draft_seconds - draft,
            reading=reading,
        )

    @property
    def _draft_seconds(self) -> float:
        return sum(driver.seconds for driver in self._drafts)
