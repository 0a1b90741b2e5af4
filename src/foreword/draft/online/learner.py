"""A drafter whose model learns from the target while it serves: between rounds, in
bounded time and memory.

The emitted text never depends on any of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.checks import whole
from foreword.draft.base import Drafter
from foreword.draft.ensemble.recipe import MethodSpec
from foreword.draft.online.replay import WINDOW, ReplayBuffer
from foreword.draft.online.trainer import OnlineTrainer, Progress
from foreword.errors import InvalidRequest, named
from foreword.estimators import finite
from foreword.model import Model
from foreword.native.openmp import threads_for
from foreword.types import Batch, Draft, Request, Scores, Verdict

CAPTURE_SHARE = 1 / 3
"""Largest share of the learning time for capturing samples; the rest is for
training.
"""
SHORTEST = 32
"""Tokens. Shortest piece of work."""
SAVED_UP = 1.0
"""Seconds. Most credit that is saved up while there is nothing to learn."""

NEEDED = (
    "it needs a draft model with the target's own tokenizer. Give one, or leave learn "
    "out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Limits and rate of online learning.

    Checked on construction; raises InvalidRequest.
    """

    share: float = 0.05
    """Learning time as a share of the time of rounds, at most."""
    memory: int = 65536
    """Most tokens of samples kept; about 270 bytes each."""
    rate: float = 3e-4
    """The learning rate."""
    pause: float = 0.1
    """Seconds that requests should wait at most; pieces of work are cut to that."""

    def __post_init__(self) -> None:
        whole(2 * WINDOW)("memory", self.memory)
        for name in ("share", "rate", "pause"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidRequest(
                    f"cannot learn with {name}={getattr(self, name)!r}: it must be "
                    "above 0 and finite. Choose another"
                )


def teaching(
    learn: bool | Learning, kind: type[Drafter] | MethodSpec, name: str
) -> Learning | None:
    """Return the settings for `learn`, None for False.

    Raises InvalidRequest if the method has nothing to learn.
    """
    if learn is False:
        return None
    if not isinstance(learn, bool | Learning):
        raise InvalidRequest(
            f"cannot use learn={learn!r}: learn must be True, False or Learning(…). "
            "Give one of these"
        )
    if not kind.learns:
        raise InvalidRequest(
            f"cannot learn with method {name}: it has nothing to learn; {NEEDED}"
        )
    return Learning() if learn is True else learn


def taught(drafter: Drafter, target: Model, settings: Learning | None) -> Drafter:
    """Return a learning drafter; without settings, the drafter with its draft model
    quantized to int8.
    """
    if settings is not None:
        return OnlineLearner(drafter, target, settings)
    if drafter.trainable is not None and drafter.trainable.hf is not target.hf:
        drafter.trainable.quantize_int8()
    return drafter


class OnlineLearner(Drafter):
    """Wrapper of a drafter with a model of its own, which trains that model while it
    serves.

    Weights change in `rest` alone: all draft tokens of a round come from the same
    weights, and are verified before they change. An error here ends learning with one
    warning, and changes no draft token and no text.
    """

    def __init__(
        self, drafter: Drafter, target: Model, settings: Learning | None = None
    ) -> None:
        """Wrap `drafter`.

        Raises InvalidRequest if it has no model to train, or that is the target itself.
        """
        trainable = drafter.trainable
        if trainable is None:
            raise InvalidRequest(
                f"cannot learn with {type(drafter).__name__}: it has nothing to learn; "
                f"{NEEDED}"
            )
        if trainable.hf is target.hf:
            raise InvalidRequest(
                "cannot learn: the draft model is the target itself, which must not "
                "change. Give another, or a copy"
            )
        self.drafter = drafter
        self._model = trainable
        self.settings = settings or Learning()
        self.hidden_layers = drafter.hidden_layers
        self.progress = Progress()
        self._buffer = ReplayBuffer(trainable.vocab, self.settings.memory)
        self._credit = 0.0
        """Seconds that may be spent now; negative after a piece of work that took
        longer.
        """
        self._capture_credit = 0.0
        """The same for capturing samples: below 0, no new sequence is captured."""
        with self._guarded():
            self._trainer = OnlineTrainer(
                trainable, self._buffer, self.settings.rate, self.progress
            )
            self._pieces = self._trainer.pieces()
            self._threads = threads_for(self._trainer.module)

    def anew(self) -> Drafter:
        """Return the drafter alone: it drafts with the weights of now, and learns no
        more.
        """
        return self.drafter.anew()

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        return self.drafter.propose(batch, nodes)

    def observe(
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        self.drafter.observe(batch, draft, verdict, scores)
        with self._guarded():
            for sequence, logits, kept in zip(
                batch.sequences, scores.logits, verdict.kept, strict=True
            ):
                if not self.progress.off and (
                    self._capture_credit >= 0 or sequence in self._buffer
                ):
                    self._buffer.record(
                        sequence, logits[[0, *(node + 1 for node in kept)]]
                    )

    def on_hidden_states(
        self, sequence: Request, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        self.drafter.on_hidden_states(sequence, start, hidden)

    def release(self, sequence: Request) -> None:
        self.drafter.release(sequence)
        self._capture(lambda: self._buffer.end(sequence))

    def rest(self, took: float) -> None:
        self.drafter.rest(took)
        earned = self.settings.share * took if finite(took) else 0.0
        self._credit = min(self._credit + earned, SAVED_UP)
        self._capture_credit = min(
            self._capture_credit + CAPTURE_SHARE * earned, SAVED_UP
        )
        self._capture(self._buffer.settle)
        if self._credit > 0:
            self._work()

    def learn(self) -> bool:
        """Do one piece of work outside the share, while no request waits; return
        whether there was any.
        """
        credit = self._credit
        worked = self._work()
        self._credit = credit
        return worked

    def _capture(self, work: Callable[[], None]) -> None:
        before = self._credit
        with self._timed():
            work()
        self._capture_credit -= before - self._credit

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
    def trainable(self) -> Model | None:
        return self._model

    def _pace(self, tokens: int, took: float) -> None:
        """Halve the length of a piece if one took too long; double it if one
        was short.
        """
        window = self._trainer.window
        if took > self.settings.pause:
            self._trainer.window = max(SHORTEST, window // 2)
        elif took < self.settings.pause / 4 and 2 * tokens > window:
            self._trainer.window = min(WINDOW, 2 * window)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Deduct the seconds spent inside from the credit."""
        start = perf_counter()
        with self._guarded():
            yield
        took = perf_counter() - start
        self._credit -= took
        self.progress.seconds += took
        self.progress.longest = max(self.progress.longest, took)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Enable gradients inside; an error ends learning with a warning."""
        try:
            with torch.inference_mode(False), torch.enable_grad():
                yield
        except Exception as error:  # noqa: BLE001 - learning must never cost a request
            self.progress.off = named(error)
            # which stays empty
            self._buffer = ReplayBuffer(self._model.vocab, self.settings.memory)
            warnings.warn(
                "the draft model learns no more and keeps its current weights: "
                f"{self.progress.off}",
                RuntimeWarning,
                stacklevel=5,
            )
