"""Training of a draft model in small pieces of work; new weights serve only if they
predict the target better.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from foreword.draft.online.replay import ReplayBuffer, Sample, draft_log_probs
from foreword.estimators import finite
from foreword.model import Model
from foreword.model.weights import copied, replace

Weights = dict[str, Tensor]
"""Name of a parameter -> its values, in the dtype of the served model."""

BATCH = 4
"""Samples per step: half of them new and half from before, against forgetting."""
TERM = 8
"""Most steps between two evaluations (OSD updates after every 8 batches)."""
EVALUATION = 256
"""Distributions. Smallest evaluation, on new samples that were not trained on."""
BRIEF = 64
"""Tokens of the first pieces of work, before their duration is measured."""
WARMUP = 8
"""Steps in which the learning rate rises, until AdamW has estimated the scale of
gradients.
"""


@dataclass(slots=True)
class Progress:
    """Progress of online learning."""

    steps: int = 0
    """Steps of the optimiser."""
    evaluations: int = 0
    published: int = 0
    """Evaluations after which new weights served."""
    returned: int = 0
    """Evaluations after which the first weights served again."""
    first: float = 0.0
    """Mean overlap with the target (1 - TV) of the first weights in the last
    evaluation.
    """
    serving: float = 0.0
    """The same of the weights that served until then."""
    seconds: float = 0.0
    """Seconds spent on learning."""
    longest: float = 0.0
    """Seconds. Longest wait of requests for learning."""
    off: str | None = None
    """Reason why learning ended, if it did."""


class OnlineTrainer:
    """Draft model, its float32 copy that is trained, and the weights to choose from."""

    def __init__(
        self, model: Model, buffer: ReplayBuffer, rate: float, progress: Progress
    ) -> None:
        self._model = model
        self._buffer = buffer
        self._rate = rate
        self._progress = progress
        self.module = copied(model)
        self.first = self.served = self._now()
        self.window = BRIEF
        """Most tokens of a piece of work; the caller may change it."""
        self._random = random.Random(0)
        self._begin()

    def pieces(self) -> Iterator[int | None]:
        """Yield endlessly, one piece of work at a time: the tokens it read, or None if
        there was nothing to do.

        New samples are first evaluated on, then trained on.
        """
        while True:
            new = self._buffer.new(
                lambda sample: len(sample.cut(self.window).logs), EVALUATION
            )
            if not new:
                yield None
                continue
            if self._progress.steps:
                yield from self._evaluate(new)
            for _ in range(min(TERM, 2 * len(new) // BATCH)):
                yield from self._step(new)

    def _step(self, new: Sequence[Sample]) -> Iterator[int]:
        """Take one optimiser step on forward KL, as in online distillation (OSD: Liu et
        al. 2024, 2310.07177).
        """
        seen = self._buffer.seen or new
        chosen = self._random.choices(new, k=BATCH // 2) + self._random.choices(
            seen, k=BATCH - BATCH // 2
        )
        samples = [sample.cut(self.window) for sample in chosen]
        rows = sum(len(sample.logs) for sample in samples)
        for sample in samples:
            logs = draft_log_probs(self._logits(sample), self._here(sample.likeliest))
            target = self._here(sample.logs)
            (F.kl_div(logs, target, reduction="sum", log_target=True) / rows).backward()
            yield len(sample)
        self._since += 1
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * min(1.0, self._since / WARMUP)
        length = torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        # else every weight would be NaN, and no evaluation would ever be passed
        if finite(float(length)):
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._progress.steps += 1
        yield 0

    def _evaluate(self, new: Sequence[Sample]) -> Iterator[int]:
        """Compare the trained, the served and the first weights on samples that are new
        to all of them.

        Weights that are better than the served ones, beyond the noise, serve from then
        on. If the trained ones are worse beyond the noise, training restarts from the
        served ones at half the rate.
        """
        versions = [self._now(), self.served, self.first]
        if self.served is self.first:
            versions.pop()
        kept: list[list[float]] = [[] for _ in versions]
        rows = 0
        for sample in self._random.sample(new, len(new)):
            sample = sample.cut(self.window)
            for weights, overlaps in zip(versions, kept, strict=True):
                overlaps.append(self.overlap(sample, weights))
                yield len(sample)
            rows += len(sample.logs)
            if rows >= EVALUATION:
                break
        trained, served, first = (*kept, kept[1])[:3]
        self._progress.evaluations += 1
        self._progress.first = sum(first) / rows
        self._progress.serving = sum(served) / rows
        if _better(first, served) and _better(first, trained):
            self._progress.returned += 1
            self._restart(self.first)
            self._publish(self.first)
        elif _better(trained, served):
            self._progress.published += 1
            self._publish(versions[0])
        elif _better(served, trained):
            self._rate /= 2
            self._restart(self.served)
        yield 0

    def _publish(self, weights: Weights) -> None:
        """Serve the module's weights; `weights` is a copy of them."""
        replace(self._model, self.module)
        self.served = weights

    @torch.no_grad()
    def overlap(self, sample: Sample, weights: Weights) -> float:
        """Return sum min(p, q) over all distributions of a sample: the accepted draft
        tokens expected (1 - TV each).
        """
        logs = draft_log_probs(
            self._logits(sample, weights), self._here(sample.likeliest)
        )
        return float(torch.minimum(logs, self._here(sample.logs)).exp().sum())

    def _logits(
        self, sample: Sample, weights: Weights | None = None
    ) -> Float[Tensor, "learnt vocab"]:
        tokens = self._here(sample.tokens).long()[None]
        replaced = {name: weight.float() for name, weight in (weights or {}).items()}
        inputs = {"input_ids": tokens, "use_cache": False}
        output = functional_call(self.module, replaced, (), inputs)
        return output.logits[0, -len(sample.logs) :].float()

    def _restart(self, weights: Weights) -> None:
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(weights[name])
        self._begin()

    def _begin(self) -> None:
        """Start AdamW (Loshchilov and Hutter 2019), without weight decay."""
        self._optimizer = torch.optim.AdamW(
            self.module.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0
        )
        self._since = 0

    def _now(self) -> Weights:
        """Return a copy of the trained weights, as they would be served."""
        dtype = self._model.dtype
        return {
            name: weight.detach().to(dtype, copy=True)
            for name, weight in self.module.named_parameters()
        }

    def _here(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._model.device)


def _better(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether the first paired results exceed the second by more than the
    standard error of the difference.
    """
    differences = [a - b for a, b in zip(one, other, strict=True)]
    return sum(differences) > math.sqrt(
        sum(difference**2 for difference in differences)
    )
