"""Adapters from a row of a transformers batch to one of our sequences: processors, stop
rules, recorded scores.

Processors and criteria of transformers expect padding; our sequences have none, so the
adapters restore it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.generation import logits_process as hf

from foreword.errors import InvalidRequest
from foreword.sampling.logits import checked, weights
from foreword.sampling.suppressed import Suppressed
from foreword.types import LogitsProcessor, Request, SamplingParams

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
"""(type, our parameter, its attribute), in the order in which both transformers and
Foreword apply them.
"""
_BY_ROW = (
    *(kind for kind, _, _ in _WARPERS),
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
    hf.ExponentialDecayLengthPenalty,
    hf.ForcedBOSTokenLogitsProcessor,
    hf.ForcedEOSTokenLogitsProcessor,
    hf.LogitNormalization,
    hf.MinLengthLogitsProcessor,
    hf.MinNewTokensLengthLogitsProcessor,
    hf.NoBadWordsLogitsProcessor,
    hf.NoRepeatNGramLogitsProcessor,
    hf.SequenceBiasLogitsProcessor,
    Suppressed,
    hf.WhisperTimeStampLogitsProcessor,
)
"""Processors that treat all rows alike; any other may depend on the row's index."""


def split(processors: Sequence[Any]) -> tuple[list[Any], dict[str, float]]:
    """Remove the plain warpers at the end of a list. Returns the rest, and the removed
    ones as sampling parameters.

    Processors that suppress tokens are replaced by ours.
    """
    rest = [_faster(one) for one in processors]
    filters = {}
    last = len(_WARPERS)
    while rest:
        index = next(
            (i for i, (kind, _, _) in enumerate(_WARPERS) if type(rest[-1]) is kind),
            last,
        )
        if index >= last or not _plain(rest[-1]):
            break
        _, parameter, attribute = _WARPERS[index]
        value = getattr(rest[-1], attribute)
        try:
            SamplingParams(**{parameter: value})
        # transformers allows more values; this one stays a processor
        except InvalidRequest:
            break
        filters[parameter], last = value, index
        rest.pop()
    return rest, filters


def _faster(processor: Any) -> Any:
    if type(processor) is hf.SuppressTokensAtBeginLogitsProcessor:
        return Suppressed(
            processor.begin_suppress_tokens.tolist(), processor.begin_index
        )
    if type(processor) is hf.SuppressTokensLogitsProcessor:
        return Suppressed(processor.suppress_tokens.tolist())
    return processor


def _plain(warper: Any) -> bool:
    minimum = getattr(warper, "min_tokens_to_keep", 1)
    fill = getattr(warper, "filter_value", -math.inf)
    return minimum == 1 and fill == -math.inf


@dataclass(frozen=True, slots=True, eq=False)
class PaddedProcessor:
    """A processor, called for one row as transformers calls it for the batch: with the
    padding, at the row's index.
    """

    processor: Any
    padding: Ids
    row: int
    batch: int

    def __call__(self, tokens: Ids, scores: Scores) -> Scores:
        ids = torch.cat([self.padding, tokens.to(self.padding.device)], dim=1)
        single = self.batch == 1 or type(self.processor) in _BY_ROW
        # A processor that may depend on the row index gets a whole batch of copies of
        # this row.
        copies = 1 if single else self.batch
        before = scores.expand(copies, -1)
        call: Any = self.processor
        result = checked(
            call, call(ids.expand(copies, -1).clone(), before.clone()), before
        )
        return result if single else result[self.row : self.row + 1]


class Recorder:
    """Logits and processed scores of the target for every committed position, without
    rejected draft tokens.

    The drafter's scores pass through the same processors, but always before the
    target's for the same prefix.
    """

    def __init__(self, params: SamplingParams, prompt: int) -> None:
        self.logits: list[Scores] = []
        self.scores: list[Scores] = []
        self._prompt = prompt
        self._filters = Request(0, [], 0, replace(params, processors=()), seed=0)
        self._pending: dict[tuple[int, ...], list[Scores]] = {}

    def wrap(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters with this recorder around their processors."""
        return replace(
            params, processors=(self._before, *params.processors, self._after)
        )

    def settle(self, path: tuple[int, ...]) -> None:
        """Record the scores at `path`, whose next token is committed."""
        logits, scores = self._pending[path]
        self.logits.append(logits)
        self.scores.append(weights(scores, self._filters))
        self._pending = {
            other: scores
            for other, scores in self._pending.items()
            if len(other) > len(path)
        }

    def _before(self, tokens: Ids, scores: Scores) -> Scores:
        self._pending[tuple(tokens[0, self._prompt :].tolist())] = [scores.clone()]
        return scores

    def _after(self, tokens: Ids, scores: Scores) -> Scores:
        self._pending[tuple(tokens[0, self._prompt :].tolist())].append(scores.clone())
        return scores


class StopRules:
    """Stop rules of one row, checked after every token of an accepted block."""

    def __init__(
        self,
        prompt: Ids,
        limit: int,
        eos: frozenset[int],
        criteria: Sequence[Criterion],
        recorder: Recorder | None = None,
    ) -> None:
        self._ids = torch.cat([prompt, prompt.new_zeros(1, limit)], dim=1)
        self._start = self._length = prompt.shape[1]
        self._eos, self._criteria = eos, criteria
        self.recorder = recorder
        self.stop: str | None = None
        """None: transformers' criteria do not say which string ended a row."""

    def push(self, token: int) -> tuple[str, bool]:
        """Append one token. Returns no text, and whether the row ends with it."""
        if self.recorder:
            self.recorder.settle(
                tuple(self._ids[0, self._start : self._length].tolist())
            )
        self._ids[0, self._length] = token
        self._length += 1
        return "", token in self._eos or self._met()

    def finish(self) -> str:
        """Return no text, since none is held back."""
        return ""

    def _met(self) -> bool:
        ids = self._ids[:, : self._length]
        scores = tuple(self.recorder.scores) if self.recorder else None
        return any(
            bool(torch.as_tensor(criterion(ids, scores)).all())
            for criterion in self._criteria
        )


def distribution(
    processors: Sequence[LogitsProcessor],
    filters: dict[str, float],
    *,
    sample: bool,
    limit: int,
) -> SamplingParams:
    """Return the sampling parameters of a row, or raise InvalidRequest."""
    temperature = filters.pop("temperature", 1.0) if sample else 0.0
    return SamplingParams(
        temperature=temperature,
        max_tokens=limit,
        processors=tuple(processors),
        **filters,  # type: ignore[arg-type]
    )
