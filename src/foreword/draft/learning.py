"""A drafter whose model learns from the target while it serves: between rounds, in bounded time and memory.

Knows budgets of time; knows nothing about how the drafter guesses. The text never depends on any of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.base import Drafter
from foreword.draft.course import Course, Progress
from foreword.draft.evidence import finite
from foreword.draft.lessons import WINDOW, Lessons
from foreword.draft.recipe import Recipe
from foreword.errors import InvalidRequest, named
from foreword.model import Model
from foreword.native.openmp import threads_for
from foreword.params import whole
from foreword.types import Batch, Draft, Scores, Sequence, Verdict

HEARING = 1 / 3
"""Of what may be spent, the part that goes into listening at most; the rest is for learning."""
SHORTEST = 32
"""Tokens of a piece of work at least."""
SAVED_UP = 1.0
"""Seconds that may be spent at most without having been earned just before, after a time with nothing to learn."""

NEEDED = "that takes a draft model with the target's own tokenizer; give one, or leave learn out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """How much may be spent on learning, and how fast it goes. Checked on construction; raises InvalidRequest."""

    share: float = 0.05
    """Of the time spent on rounds, at most this much again goes into learning."""
    memory: int = 65536
    """Tokens of texts kept at most; about 270 bytes each."""
    rate: float = 3e-4
    """The learning rate."""
    pause: float = 0.1
    """Seconds that requests should wait at a time at most; what is learnt from at a time is cut to that."""

    def __post_init__(self) -> None:
        whole(2 * WINDOW)("memory", self.memory)
        for name in ("share", "rate", "pause"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidRequest(f"{name} must be above 0, got {getattr(self, name)!r}")


def teaching(learn: bool | Learning, kind: type[Drafter] | Recipe, name: str) -> Learning | None:
    """What was asked for, None where nothing was. Raises InvalidRequest where the method has nothing to learn."""
    if learn is False:
        return None
    if not isinstance(learn, bool | Learning):
        raise InvalidRequest(f"learn must be True, False or Learning(…), got {learn!r}")
    if not kind.learns:
        raise InvalidRequest(f"the method {name} has nothing to learn while it serves: {NEEDED}")
    return Learning() if learn is True else learn


def taught(drafter: Drafter, target: Model, how: Learning | None) -> Drafter:
    """A drafter whose model learns; or where nothing is to be learnt, one whose model is held as guesses need it."""
    if how is not None:
        return Learner(drafter, target, how)
    if drafter.pupil is not None and drafter.pupil.hf is not target.hf:
        drafter.pupil.lighten()
    return drafter


class Learner(Drafter):
    """Any drafter that guesses with a model of its own, and what makes that model better while it serves.

    Weights change in `rest` alone: all guesses of a round come from the same ones, and are judged before others come.
    What fails here ends learning, says so once, and changes no guess and no text.
    """

    def __init__(self, drafter: Drafter, target: Model, settings: Learning | None = None) -> None:
        """Raises InvalidRequest where there is nothing that could learn, or it is the target itself."""
        pupil = drafter.pupil
        if pupil is None:
            raise InvalidRequest(f"{type(drafter).__name__} has nothing to learn while it serves: {NEEDED}")
        if pupil.hf is target.hf:
            raise InvalidRequest("the draft model is the target itself, which must not learn; give another, or a copy")
        self.drafter, self._model, self.settings = drafter, pupil, settings or Learning()
        self.wants = drafter.wants
        self.progress = Progress()
        self._lessons = Lessons(pupil.vocab, self.settings.memory)
        self._credit = 0.0
        """Seconds that may be spent now; less than none where a piece of work took longer than there were."""
        self._ear = 0.0
        """The same for listening: no new text is listened to below none."""
        with self._guarded():
            self._course = Course(pupil, self._lessons, self.settings.rate, self.progress)
            self._pieces = self._course.pieces()
            self._threads = threads_for(self._course.module)

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        return self.drafter.propose(batch, nodes)

    def observe(self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        self.drafter.observe(batch, draft, verdict, scores)
        with self._guarded():
            for sequence, logits, kept in zip(batch.sequences, scores.logits, verdict.kept, strict=True):
                if not self.progress.off and (self._ear >= 0 or sequence in self._lessons):
                    self._lessons.hear(sequence, logits[[0, *(node + 1 for node in kept)]])

    def hear(self, sequence: Sequence, start: int, hidden: Float[Tensor, "tokens features"]) -> None:
        self.drafter.hear(sequence, start, hidden)

    def release(self, sequence: Sequence) -> None:
        self.drafter.release(sequence)
        self._listen(lambda: self._lessons.end(sequence))

    def rest(self, took: float) -> None:
        self.drafter.rest(took)
        earned = self.settings.share * took if finite(took) else 0.0
        self._credit = min(self._credit + earned, SAVED_UP)
        self._ear = min(self._ear + HEARING * earned, SAVED_UP)
        self._listen(self._lessons.settle)
        if self._credit > 0:
            self._work()

    def learn(self) -> bool:
        """One piece of work beside the share, for times when nobody waits; whether there was any to do."""
        credit = self._credit
        worked = self._work()
        self._credit = credit
        return worked

    def _listen(self, work: Callable[[], None]) -> None:
        before = self._credit
        with self._timed():
            work()
        self._ear -= before - self._credit

    def _work(self) -> bool:
        if self.progress.off:
            return False
        tokens = None
        with self._timed(), self._threads():
            start = perf_counter()
            tokens = next(self._pieces)
            if tokens:
                self._pace(tokens, perf_counter() - start)
        return tokens is not None

    @property
    def pupil(self) -> Model | None:
        return self._model

    def _pace(self, tokens: int, took: float) -> None:
        """Shorter pieces where one took too long, longer ones where it was nothing."""
        window = self._course.window
        if took > self.settings.pause:
            self._course.window = max(SHORTEST, window // 2)
        elif took < self.settings.pause / 4 and 2 * tokens > window:
            self._course.window = min(WINDOW, 2 * window)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """What it costs is paid from the share."""
        start = perf_counter()
        with self._guarded():
            yield
        took = perf_counter() - start
        self._credit -= took
        self.progress.seconds += took
        self.progress.longest = max(self.progress.longest, took)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Gradients inside, whatever the caller is in; an error ends learning."""
        try:
            with torch.inference_mode(False), torch.enable_grad():
                yield
        except Exception as error:  # noqa: BLE001 - learning must never cost a request
            self.progress.off = named(error)
            self._lessons = Lessons(self._model.vocab, self.settings.memory)  # which stays empty
            warnings.warn(
                f"the draft learns no more; guesses go on with what it has learnt so far. {self.progress.off}",
                RuntimeWarning,
                stacklevel=5,
            )
