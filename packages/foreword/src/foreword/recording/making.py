"""From a traced completion to its recording."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any

from foreword.api.llm import LLM
from foreword.budget import AdaptiveBudget, DraftBudget, FixedBudget
from foreword.errors import InvalidRequest
from foreword.native.cpu import processor
from foreword.native.openmp import threads
from foreword.recording.recording import Machine, Recording, Totals
from foreword.registry import BUDGETS
from foreword.types import Completion, SamplingParams
from foreword.types.round import Round, short
from foreword.version import VERSION

LEFT_OUT = ("seed", "n", "method", "rule", "budget", "nodes", "trace")
"""Parameters that a recording holds elsewhere, or that say nothing about one answer."""


def recorded(llm: LLM, params: SamplingParams, answer: Completion) -> Recording:
    """Return the recording of an answer; see `Recording.of`."""
    if answer.rounds is None:
        raise InvalidRequest(
            "cannot record this answer: its rounds were not traced. Use "
            "SamplingParams(trace=True)"
        )
    used = llm.session.speculator(params)
    prompt = llm.tokenizer.decode(
        answer.prompt_tokens, clean_up_tokenization_spaces=False
    )
    return Recording(
        library=VERSION,
        # a hub id, or a folder without its home
        model="/".join(Path(llm.target.name).parts[-2:]),
        method=params.method or llm.method,
        rule=used.rule.name,
        budget=_name(used.budget),
        params=_plain_params(params),
        seed=answer.seed,
        prompt_tokens=tuple(answer.prompt_tokens),
        prompt=str(prompt),
        answer=answer.text,
        finish_reason=answer.finish_reason,
        machine=Machine(processor(), threads()),
        rounds=tuple(answer.rounds),
        totals=Totals.of(answer.rounds, _plain_pace(used.budget, answer.rounds)),
    )


def _name(budget: DraftBudget) -> str:
    if isinstance(budget, FixedBudget):
        return f"nodes={budget.count}"
    return next(
        (name for name, kind in BUDGETS.items() if type(budget) is kind),
        type(budget).__name__,
    )


def _plain_params(params: SamplingParams) -> dict[str, Any]:
    """Return the parameters that are not the default, as JSON has them."""
    default = SamplingParams()
    names = (field.name for field in fields(params) if field.name not in LEFT_OUT)
    return {
        name: _plain(getattr(params, name))
        for name in names
        if getattr(params, name) != getattr(default, name)
    }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return getattr(value, "__name__", None) or type(value).__name__


def _plain_pace(budget: DraftBudget, rounds: Sequence[Round]) -> float | None:
    """Return the estimated tokens per second of plain decoding: a forward over one row,
    then verify and commit.
    """
    if not (isinstance(budget, AdaptiveBudget) and rounds):
        return None
    overhead = fmean(one.verify_ms + one.commit_ms for one in rounds) / 1000
    return short(1 / (budget.costs.seconds(1) + overhead))
