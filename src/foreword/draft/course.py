"""Teaches a draft model in small pieces of work, and lets it serve with new weights only where they foresee better.

Knows weights and lessons; knows nothing about clocks, requests or rounds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from foreword.draft.evidence import finite
from foreword.draft.lessons import Lesson, Lessons, foreseen
from foreword.model import Model
from foreword.model.weights import copied, replace

Weights = dict[str, Tensor]
"""Name of a parameter -> its numbers, in the dtype that is served."""

BATCH = 4
"""Lessons of a step: half of them new, half from before, so that what was learnt is not forgotten."""
TERM = 8
"""Steps between two examinations at most (OSD learns after every 8 batches)."""
EXAM = 256
"""Laws that an examination is held on at least, of new lessons that nobody has learnt from."""
BRIEF = 64
"""Tokens of the first pieces of work, while nobody knows how long they take."""
WARMUP = 8
"""Steps in which the learning rate rises, while AdamW does not know yet how long gradients are."""


@dataclass(slots=True)
class Progress:
    """How learning goes."""

    steps: int = 0
    """Of the optimiser."""
    exams: int = 0
    published: int = 0
    """Examinations after which new weights served."""
    returned: int = 0
    """Examinations after which the first weights served again."""
    first: float = 0.0
    """Overlap with the target in the last examination, of the weights that the draft came with: 1 - TV, on average."""
    serving: float = 0.0
    """The same of those that served until then."""
    seconds: float = 0.0
    """Spent on it."""
    longest: float = 0.0
    """The longest that requests waited for it at a time, in seconds."""
    off: str | None = None
    """Why it ended, if it did."""


class Course:
    """A draft model, its float32 double that learns, and the weights to choose from."""

    def __init__(self, model: Model, lessons: Lessons, rate: float, progress: Progress) -> None:
        self._model, self._lessons, self._rate, self._progress = model, lessons, rate, progress
        self.module = copied(model)
        self.first = self.served = self._now()
        self.window = BRIEF
        """Tokens of a piece of work at most; whoever calls may change it."""
        self._random = random.Random(0)
        self._begin()

    def pieces(self) -> Iterator[int | None]:
        """Work without end, a piece at a time: the tokens that were read for it, None where there was nothing to do.

        An examination is held on lessons that nobody has learnt from, then they are learnt (test, then train).
        """
        while True:
            new = self._lessons.new(lambda lesson: len(lesson.cut(self.window).logs), EXAM)
            if not new:
                yield None
                continue
            if self._progress.steps:
                yield from self._examine(new)
            for _ in range(min(TERM, 2 * len(new) // BATCH)):
                yield from self._step(new)

    def _step(self, new: List[Lesson]) -> Iterator[int]:
        """One step of the optimiser on forward KL, as in online distillation (OSD: Liu et al. 2024, 2310.07177)."""
        known = self._lessons.known or new
        chosen = self._random.choices(new, k=BATCH // 2) + self._random.choices(known, k=BATCH - BATCH // 2)
        lessons = [lesson.cut(self.window) for lesson in chosen]
        rows = sum(len(lesson.logs) for lesson in lessons)
        for lesson in lessons:
            logs, target = foreseen(self._logits(lesson), self._here(lesson.likeliest)), self._here(lesson.logs)
            (F.kl_div(logs, target, reduction="sum", log_target=True) / rows).backward()
            yield len(lesson)
        self._since += 1
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * min(1.0, self._since / WARMUP)
        length = torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        if finite(float(length)):  # else every weight would be NaN, and no examination would ever be passed
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._progress.steps += 1
        yield 0

    def _examine(self, new: List[Lesson]) -> Iterator[int]:
        """Compare what was learnt, what serves and what was there first on texts that are new to all of them.

        What is better than what serves, beyond the noise of the examination, serves from then on. What was learnt and
        is worse beyond it is thrown away, and learning goes on from what serves, at half the rate.
        """
        versions = [self._now(), self.served, self.first]
        if self.served is self.first:
            versions.pop()
        kept: list[list[float]] = [[] for _ in versions]
        rows = 0
        for lesson in self._random.sample(new, len(new)):
            lesson = lesson.cut(self.window)
            for weights, overlaps in zip(versions, kept, strict=True):
                overlaps.append(self.overlap(lesson, weights))
                yield len(lesson)
            rows += len(lesson.logs)
            if rows >= EXAM:
                break
        learnt, served, first = (*kept, kept[1])[:3]
        self._progress.exams += 1
        self._progress.first, self._progress.serving = sum(first) / rows, sum(served) / rows
        if _better(first, served) and _better(first, learnt):
            self._progress.returned += 1
            self._restart(self.first)
            self._publish(self.first)
        elif _better(learnt, served):
            self._progress.published += 1
            self._publish(versions[0])
        elif _better(served, learnt):
            self._rate /= 2
            self._restart(self.served)
        yield 0

    def _publish(self, weights: Weights) -> None:
        """Let these serve, which are those of the module."""
        replace(self._model, self.module)
        self.served = weights

    @torch.no_grad()
    def overlap(self, lesson: Lesson, weights: Weights) -> float:
        """sum min(p, q) over the laws of a lesson, added up: how many drawn guesses would be kept (1 - TV each)."""
        logs = foreseen(self._logits(lesson, weights), self._here(lesson.likeliest))
        return float(torch.minimum(logs, self._here(lesson.logs)).exp().sum())

    def _logits(self, lesson: Lesson, weights: Weights | None = None) -> Float[Tensor, "learnt vocab"]:
        tokens = self._here(lesson.tokens).long()[None]
        own = {} if weights is None else {name: weight.float() for name, weight in weights.items()}
        said = functional_call(self.module, own, (), {"input_ids": tokens, "use_cache": False})
        return said.logits[0, -len(lesson.logs) :].float()

    def _restart(self, weights: Weights) -> None:
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(weights[name])
        self._begin()

    def _begin(self) -> None:
        """AdamW (Loshchilov and Hutter 2019), without decay."""
        self._optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
        self._since = 0

    def _now(self) -> Weights:
        """What has been learnt so far, as it would be served."""
        dtype = self._model.dtype
        return {name: weight.detach().to(dtype, copy=True) for name, weight in self.module.named_parameters()}

    def _here(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._model.device)


def _better(one: List[float], other: List[float]) -> bool:
    """Of paired results, the first are higher by more than the standard error of their difference."""
    differences = [a - b for a, b in zip(one, other, strict=True)]
    return sum(differences) > math.sqrt(sum(difference**2 for difference in differences))
