"""The engine as a benchmark entry: runs it round by round and measures the time of each
model's forwards.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

from transformers import PreTrainedTokenizerBase

from foreword.api.requests import Requests
from foreword.budget import DraftBudget, StoppingBudget
from foreword.engine import Engine
from foreword.engine.choosing import Chooser
from foreword.types import Draft, Request, SamplingParams
from foreword_lab.bench.records import BenchRequest, EntryFailed, Round, Trial
from foreword_lab.bench.timed import timed, timed_drafts

Predictions: TypeAlias = deque[float]
"""Tokens that the last draft was predicted to yield; empty where nothing was drafted,
or without probabilities.
"""


def watched(budget: DraftBudget, predictions: Predictions | None = None) -> DraftBudget:
    """Return the budget, which from now on notes its predictions (`predictions_of`).
    The budgets that it makes for other methods do so too.

    One that decides after every draft token cannot be watched.
    """
    if isinstance(budget, StoppingBudget):
        return budget
    seen = Predictions(maxlen=1) if predictions is None else predictions
    trim, anew = budget.trim, budget.anew

    def noting(draft: Draft) -> Draft:
        draft = trim(draft)
        if draft.nodes and draft.weighed:
            seen.extend(1 + sum(tree.probabilities) for tree in draft.trees)
        return draft

    def another() -> DraftBudget:
        other = anew()
        return other if other is budget else watched(other, seen)

    vars(budget).update(trim=noting, anew=another, predictions=seen)
    return budget


def predictions_of(budget: DraftBudget) -> Predictions:
    """Return what a budget notes; nothing if it is not watched."""
    return getattr(budget, "predictions", Predictions())


@dataclass(frozen=True, slots=True)
class Served:
    """Result of serving many requests in batches."""

    texts: list[list[int]]
    """Token ids of each answer, in the order of the requests."""
    seconds: float
    drafted: int
    accepted: int

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return sum(map(len, self.texts)) / self.seconds


def _disk() -> int | None:
    """Return the bytes this process read from disk; None if unknown."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) for line in lines if line.startswith("read_bytes")), None
    )


class EngineEntry:
    """A benchmark entry of one engine; tokens are also detokenized, as for users."""

    def __init__(
        self, name: str, engine: Engine, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self.name = name
        self._engine, self._requests = engine, Requests(engine.target, tokenizer)
        self._target = timed(engine.target)
        self._drafts = timed_drafts(engine.drafter)
        self._predictions = predictions_of(engine.budget)

    def run(self, request: BenchRequest) -> Trial:
        """Answer a request. Raises EntryFailed if the drafter failed: it was plain."""
        reads = self._target.reads
        disk = _disk()
        started = perf_counter()
        running = self._request(request)
        self._engine.add(running)
        rounds = []
        try:
            while running.finish_reason is None:
                rounds.append(self._round(running))
        finally:
            # a round failed; other entries use this target too
            if running.finish_reason is None:
                self._engine.abort(running)
        seconds = perf_counter() - started
        if self._engine.failed:
            raise EntryFailed(
                f"cannot measure {self.name}: it failed on {request.name}: "
                f"{self._engine.failed}"
            )
        tokens, passes = running.tokens[running.prompt :], self._target.reads - reads
        return Trial(
            tokens,
            seconds,
            passes,
            tuple(rounds),
            None if disk is None else (_disk() or 0) - disk,
            sum(one.seconds for one in rounds if one.reading),
            by_method=running.stats.by_method,
        )

    def serve(self, bench_requests: Sequence[BenchRequest], slots: int) -> Served:
        """Answer all, at most `slots` at a time. Raises EntryFailed as `run`."""
        scheduler = self._engine.scheduler
        requests = [self._request(bench_request) for bench_request in bench_requests]
        before, scheduler.slots = scheduler.slots, slots
        started = perf_counter()
        try:
            for request in requests:
                self._engine.add(request)
            while not self._engine.idle:
                self._engine.step()
        finally:
            scheduler.slots = before
            for request in requests:
                if request.finish_reason is None:
                    self._engine.abort(request)
        seconds = perf_counter() - started
        if self._engine.failed:
            raise EntryFailed(
                f"cannot measure {self.name}: it failed: {self._engine.failed}"
            )
        stats = [request.stats for request in requests]
        texts = [one.tokens[one.prompt :] for one in requests]
        return Served(
            texts,
            seconds,
            sum(one.drafted for one in stats),
            sum(one.accepted for one in stats),
        )

    def _request(self, bench_request: BenchRequest) -> Request:
        params = SamplingParams(
            temperature=bench_request.temperature,
            seed=bench_request.seed,
            max_tokens=bench_request.max_tokens,
        )
        prompt_and_params = self._requests.read(bench_request.prompt, params)
        return self._requests.build(*prompt_and_params)[0]

    def _round(self, request: Request) -> Round:
        stats = request.stats
        written = request.produced
        length = len(request.tokens)
        reading = len(request.pending) > 1
        drafted, accepted = stats.drafted, stats.accepted
        target = self._target.seconds
        draft = self._draft_seconds
        self._predictions.clear()
        started = perf_counter()
        self._engine.step()
        return Round(
            tokens=request.produced - written,
            drafted=stats.drafted - drafted,
            accepted=stats.accepted - accepted,
            seconds=perf_counter() - started,
            clock=self._engine.clock,
            target=self._target.seconds - target,
            draft=self._draft_seconds - draft,
            reading=reading,
            predicted=self._predictions[0] if self._predictions else None,
            speeds=self._speeds(request, length),
        )

    def _speeds(self, request: Request, length: int) -> dict[str, float]:
        """Return what was expected of each method in the round of so many tokens."""
        chooser = self._engine.default
        return chooser.speeds(request, length) if isinstance(chooser, Chooser) else {}

    @property
    def _draft_seconds(self) -> float:
        return sum(one.seconds for one in self._drafts)
