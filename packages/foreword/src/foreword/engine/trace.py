"""Traces of rounds (`SamplingParams(trace=True)`), timed after the commit."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from foreword.engine.scheduler import ScheduledRequest
from foreword.engine.sub_batch import SubBatch
from foreword.types import Delta, Draft, Request, Round
from foreword.types.round import (
    REASONS,
    AddedToken,
    DraftToken,
    Reason,
    Undrafted,
    short,
)


def begin(
    sub_batches: Sequence[SubBatch], scheduled: Sequence[ScheduledRequest]
) -> None:
    """Trace the round for every request that asks for it, all but its times and text.

    Runs after verification and before the commit: the distributions depend on the
    committed tokens.
    """
    rows = [
        (sub_batch, row, request)
        for sub_batch in sub_batches
        for row, request in enumerate(sub_batch.batch.requests)
    ]
    traced = [found for found in rows if found[2].params.trace]
    if not traced:
        return
    drafted = sum(
        len(tree) for sub_batch in sub_batches for tree in sub_batch.draft.trees
    )
    rows = drafted + sum(entry.read for entry in scheduled)
    prompt_rows = sum(entry.read for entry in scheduled if not entry.request.produced)
    for sub_batch, row, request in traced:
        round_ = sub_batch.rounds[row] = _round(sub_batch, row, request)
        round_.rows = rows
        round_.prompt_rows = prompt_rows
        round_.sequences = len(scheduled)


def attach(sub_batch: SubBatch, row: int, delta: Delta) -> Delta:
    """Return the delta of a request with its trace, if it has one."""
    round_ = sub_batch.rounds.get(row)
    if round_ is None:
        return delta
    round_.pieces = delta.pieces
    return replace(delta, round=round_)


def close(sub_batch: SubBatch) -> None:
    """Add the times, which are known once the round is over."""
    clock = sub_batch.clock
    for round_ in sub_batch.rounds.values():
        times = (clock.propose, clock.score, clock.verify, clock.commit)
        round_.propose_ms, round_.score_ms, round_.verify_ms, round_.commit_ms = (
            short(1000 * one) for one in times
        )


def _round(sub_batch: SubBatch, row: int, request: Request) -> Round:
    tree = sub_batch.draft.trees[row]
    path = sub_batch.verdict.kept[row]
    added = sub_batch.verdict.added[row]
    last = path[-1] if path else -1
    *targets, of_added = _target_probs(
        sub_batch, row, [*tree.parents, last], [*tree.tokens, added]
    )
    befores = [
        tree.tokens[parent] if parent >= 0 else request.tokens[-1]
        for parent in (*tree.parents, last)
    ]
    show, tokens = getattr(request.reader, "show", None), [*tree.tokens, added]
    *texts, text = map(show, tokens, befores) if show else [""] * len(tokens)
    drafts = _draft_probs(sub_batch.draft, row)
    kind: Literal["bonus", "correction", "plain"] = (
        "correction" if last in tree.parents else "bonus"
    )
    why, stats = sub_batch.reasons[row], request.stats
    method, speeds = sub_batch.speculator.choice_of(request)
    return Round(
        draft=tuple(map(DraftToken, tree.tokens, texts, tree.parents, drafts, targets)),
        accepted=tuple(path),
        added=AddedToken(added, text, of_added, kind if len(tree) else "plain"),
        budget=sub_batch.budgets[row],
        undrafted=why and Undrafted(why, _sentence(why, sub_batch, request)),
        rows=0,
        prompt_rows=0,
        sequences=0,
        prefill_tokens=0 if stats.rounds else stats.prefill_tokens,
        prefill_ms=0.0 if stats.rounds else short(1000 * stats.prefill),
        method=method,
        speeds=speeds,
    )


def _sentence(why: Reason, sub_batch: SubBatch, request: Request) -> str:
    error = (request.undrafted or sub_batch.failed) if why == "failed" else None
    return f"{REASONS[why]} {error}" if error else REASONS[why]


def _target_probs(
    sub_batch: SubBatch, row: int, parents: list[int], tokens: list[int]
) -> list[float | None]:
    """Return each token's probability after its parent; None if invalid or NaN."""
    distributions, request = sub_batch.distributions, sub_batch.batch.requests[row]
    columns = [parent + 1 for parent in parents]
    scaled: Float[Tensor, "column vocab"] = distributions.weights[row].float()
    if distributions.unscaled[row]:
        scaled = scaled / (request.params.temperature or 1.0)
    values = (scaled[columns, tokens] - scaled.logsumexp(-1)[columns]).exp().tolist()
    invalid = distributions.invalid[row]
    probabilities: list[float | None] = []
    for column, value in zip(columns, values, strict=True):
        absent = column in invalid or math.isnan(value)
        probabilities.append(None if absent else short(value))
    return probabilities


def _draft_probs(draft: Draft, row: int) -> list[float | None]:
    """Return the drafter's probability of each token after its parent, or None."""
    tree = draft.trees[row]
    if draft.probs is not None:
        return [
            short(q) for q in draft.probs[row, range(len(tree)), tree.tokens].tolist()
        ]
    if len(tree.probabilities) != len(tree):
        return [None] * len(tree)
    reached = [
        tree.probabilities[parent] if parent >= 0 else 1.0 for parent in tree.parents
    ]
    ratios = zip(tree.probabilities, reached, strict=True)
    return [
        short(min(path / before, 1.0)) if before else None for path, before in ratios
    ]
