"""One row of a transformers batch as one of our sequences: its processors, its stop rules, the scores it was asked for.

Knows transformers' processors and criteria, which see padding; our sequences have none, so it is put back for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.generation import logits_process as hf

from foreword.errors import InvalidRequest
from foreword.sampling import checked, weights
from foreword.types import LogitsProcessor, SamplingParams, Sequence

Ids = Int[Tensor, "1 length"]
Scores = Float[Tensor, "1 vocab"]
Criterion = Callable[..., Any]

_WARPERS: tuple[tuple[type, str, str], ...] = (
    (hf.TemperatureLogitsWarper, "temperature", "temperature"),
    (hf.TopKLogitsWarper, "top_k", "top_k"),
    (hf.TopPLogitsWarper, "top_p", "top_p"),
    (hf.MinPLogitsWarper, "min_p", "min_p"),
    (hf.TypicalLogitsWarper, "typical_p", "mass"),
)
"""(type, our parameter, its attribute), in the order in which both transformers and Foreword apply them."""
_BY_ROW = (
    *(kind for kind, _, _ in _WARPERS),
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
    hf.ExponentialDecayLengthPenalty,
    hf.ForcedEOSTokenLogitsProcessor,
    hf.LogitNormalization,
    hf.MinLengthLogitsProcessor,
    hf.MinNewTokensLengthLogitsProcessor,
    hf.NoBadWordsLogitsProcessor,
    hf.NoRepeatNGramLogitsProcessor,
    hf.SequenceBiasLogitsProcessor,
    hf.SuppressTokensAtBeginLogitsProcessor,
    hf.SuppressTokensLogitsProcessor,
)
"""Processors that treat every row alike, wherever it stands; all others may know which row is which."""


def split(processors: List[Any]) -> tuple[list[Any], dict[str, float]]:
    """Cut off the plain warpers at the end of a list; returns the rest, and them as our sampling parameters."""
    rest, found, last = list(processors), {}, len(_WARPERS)
    while rest:
        place = next((i for i, (kind, _, _) in enumerate(_WARPERS) if type(rest[-1]) is kind), last)
        if place >= last or not _plain(rest[-1]):
            break
        _, parameter, attribute = _WARPERS[place]
        value = getattr(rest[-1], attribute)
        try:
            SamplingParams(**{parameter: value})
        except InvalidRequest:  # transformers takes more, and then it stays a processor
            break
        found[parameter], last = value, place
        rest.pop()
    return rest, found


def _plain(warper: Any) -> bool:
    keeps, fills = getattr(warper, "min_tokens_to_keep", 1), getattr(warper, "filter_value", -math.inf)
    return keeps == 1 and fills == -math.inf


@dataclass(frozen=True, slots=True, eq=False)
class InPlace:
    """A processor, called for one row as transformers would call it for the batch: after the padding, in its place."""

    processor: Any
    pads: Ids
    row: int
    batch: int

    def __call__(self, tokens: Ids, scores: Scores) -> Scores:
        ids = torch.cat([self.pads, tokens.to(self.pads.device)], dim=1)
        alone = self.batch == 1 or type(self.processor) in _BY_ROW
        # Whoever may look at the number of its row gets a whole batch of copies of this one.
        copies = 1 if alone else self.batch
        before = scores.expand(copies, -1)
        call: Any = self.processor
        everywhere = checked(call, call(ids.expand(copies, -1).clone(), before.clone()), before)
        return everywhere if alone else everywhere[self.row : self.row + 1]


class Recorder:
    """Keeps the target's logits and processed scores of every position that was written, and of no guess that was not.

    The drafter's scores pass through the same processors, but always before the target's own for the same text.
    """

    def __init__(self, params: SamplingParams, prompt: int) -> None:
        self.logits: list[Scores] = []
        self.scores: list[Scores] = []
        self._prompt = prompt
        self._filters = Sequence(0, [], 0, replace(params, processors=()), seed=0)
        self._seen: dict[tuple[int, ...], list[Scores]] = {}

    def around(self, params: SamplingParams) -> SamplingParams:
        """The parameters with this recorder before and after their processors."""
        return replace(params, processors=(self._before, *params.processors, self._after))

    def settle(self, path: tuple[int, ...]) -> None:
        """The token after `path` is committed."""
        logits, scores = self._seen[path]
        self.logits.append(logits)
        self.scores.append(weights(scores, self._filters))
        self._seen = {other: seen for other, seen in self._seen.items() if len(other) > len(path)}

    def _before(self, tokens: Ids, scores: Scores) -> Scores:
        self._seen[tuple(tokens[0, self._prompt :].tolist())] = [scores.clone()]
        return scores

    def _after(self, tokens: Ids, scores: Scores) -> Scores:
        self._seen[tuple(tokens[0, self._prompt :].tolist())].append(scores.clone())
        return scores


class StopRules:
    """Reads a row token by token, also inside an accepted block, and asks every stopping criterion after each."""

    def __init__(
        self, prompt: Ids, limit: int, eos: frozenset[int], criteria: List[Criterion], recorder: Recorder | None = None
    ) -> None:
        self._ids = torch.cat([prompt, prompt.new_zeros(1, limit)], dim=1)
        self._start = self._length = prompt.shape[1]
        self._eos, self._criteria = eos, criteria
        self.recorder = recorder

    def push(self, token: int) -> tuple[str, bool]:
        """Read one token. Returns no text, and whether the row ends with it."""
        if self.recorder:
            self.recorder.settle(tuple(self._ids[0, self._start : self._length].tolist()))
        self._ids[0, self._length] = token
        self._length += 1
        return "", token in self._eos or self._met()

    def finish(self) -> str:
        """Nothing is ever held back."""
        return ""

    def _met(self) -> bool:
        ids = self._ids[:, : self._length]
        scores = tuple(self.recorder.scores) if self.recorder else None
        return any(bool(torch.as_tensor(criterion(ids, scores)).all()) for criterion in self._criteria)


def law(processors: List[LogitsProcessor], filters: dict[str, float], *, sample: bool, limit: int) -> SamplingParams:
    """The sampling parameters of a row; raises InvalidRequest where a value is out of range."""
    temperature = filters.pop("temperature", 1.0) if sample else 0.0
    return SamplingParams(temperature=temperature, max_tokens=limit, processors=tuple(processors), **filters)  # type: ignore[arg-type]
