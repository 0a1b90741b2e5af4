"""Figures of a benchmark over the rounds after the prompt was read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean

import numpy as np

from foreword_lab.bench.records import Round, Trial
from foreword_lab.bench.stats import Costs, Interval, speed, speedup

STEPS = ("propose", "score", "verify", "commit")


@dataclass(frozen=True, slots=True)
class Decoding:
    """Figures over the rounds after the prompt was read."""

    outside_forward_share: float
    """Share of their time outside the forwards of target and draft model."""
    tokens_per_second: float
    prediction: float
    """Tokens per second if only the target's forwards took time: the limit for these
    draft tokens on this machine.
    """
    share_of_allowed: float
    """tokens_per_second / prediction."""
    step_seconds: Mapping[str, float]
    """Mean seconds of each step of a round."""
    round_seconds: float
    """Mean seconds of a round, bookkeeping included."""
    target_forward_seconds: float
    """Mean seconds of the target's forwards in a round."""
    draft_forward_seconds: float
    """The same for a draft model; 0 if there is none."""
    predicted_tokens_per_round: float | None = None
    """1 and the sum of the probabilities of the draft tokens that were scored: mean of
    the rounds that have such a prediction. None if none has.
    """
    predicted_rounds_tokens_per_round: float | None = None
    """The tokens of those rounds: 1 and the accepted draft tokens, on average."""
    expected_speeds: Mapping[str, float] = field(default_factory=dict)
    """By method that was chosen among: tokens expected in the time of a plain round,
    mean of the rounds that state it.
    """


def decoding_of(rounds: list[Round]) -> Decoding | None:
    """Return the figures of these rounds, None without any."""
    if not rounds:
        return None
    tokens = sum(one.tokens for one in rounds)
    seconds = sum(one.seconds for one in rounds)
    target = sum(one.target for one in rounds)
    draft = sum(one.draft for one in rounds)
    stated = [one.predicted for one in rounds if one.predicted is not None]
    accepted = [one.accepted for one in rounds if one.predicted is not None]
    return Decoding(
        outside_forward_share=1 - (target + draft) / seconds,
        tokens_per_second=tokens / seconds,
        prediction=tokens / target,
        share_of_allowed=target / seconds,
        step_seconds={
            step: fmean(getattr(one.clock, step) for one in rounds) for step in STEPS
        },
        round_seconds=seconds / len(rounds),
        target_forward_seconds=target / len(rounds),
        draft_forward_seconds=draft / len(rounds),
        predicted_tokens_per_round=fmean(stated) if stated else None,
        predicted_rounds_tokens_per_round=1 + fmean(accepted) if stated else None,
        expected_speeds={
            method: fmean(one.speeds[method] for one in rounds if method in one.speeds)
            for method in dict.fromkeys(
                chain.from_iterable(one.speeds for one in rounds)
            )
        },
    )


def decode_speed(trials: Mapping[str, list[Trial]]) -> float | None:
    """Return tokens per second after the prompts were read; None where not visible."""
    costs = _decode_costs(trials)
    return speed(costs) if costs.any() else None


def decode_speedup(
    mine: dict[str, list[Trial]], plain: dict[str, list[Trial]]
) -> Interval | None:
    """Return None if no answer has visible tokens after the prompt was read."""
    ours, theirs = _decode_costs(mine), _decode_costs(plain)
    both = (ours > 0).all(axis=1) & (theirs > 0).all(axis=1)
    return speedup(ours[both], theirs[both]) if both.any() else None


def _decode_costs(trials: Mapping[str, list[Trial]]) -> Costs:
    sums = [
        np.sum([trial.decoding for trial in trials[prompt]], axis=0)
        for prompt in sorted(trials)
    ]
    return np.array(sums, dtype=np.float64)
