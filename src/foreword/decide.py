"""DECIDE, as the engine needs it: from the logits of a round to a verdict, under every request's own parameters.

Knows laws, noise and the rule; knows nothing about models or drafters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draws import KeyedDraws
from foreword.errors import InvalidRequest
from foreword.sampling import check_allowed, choose, one_hot, weights
from foreword.types import Batch, Draft, Sequence, Verdict
from foreword.verify import Rule

Logits = list[Float[Tensor, "_ vocab"]]
"""One for each sequence: the target's logits after its last committed token and after each of its guesses."""


class Decider:
    """Applies one rule. `give_up` is called with a sequence whose own parameters fail, before the error is raised."""

    def __init__(self, rule: Rule, draws: KeyedDraws, give_up: Callable[[Sequence], None]) -> None:
        self._rule, self._draws, self._give_up = rule, draws, give_up

    def decide(self, batch: Batch, draft: Draft, logits: Logits) -> Verdict:
        """Which guesses stay, and the target's own token after them."""
        if not batch.sequences:
            return Verdict(path=draft.tokens, accepted=draft.count, bonus=draft.count)
        depths = [draft.depths(row) for row in range(len(batch))]
        if self._rule.follow is not None and all(sequence.params.plain for sequence in batch.sequences):
            return self._rule.follow(self._drawn(batch, depths, logits), draft)
        laws = [self._law(sequence, draft, row, logits[row]) for row, sequence in enumerate(batch.sequences)]
        noise = self._draws.deciding(batch.sequences, draft, depths)
        verdict = self._rule.verify(_padded(laws, draft.nodes + 1), draft, noise)
        for row, sequence in enumerate(batch.sequences):
            if sequence.params.reads_path:
                self._check(sequence, laws[row], verdict, row)
        return verdict

    def _drawn(self, batch: Batch, depths: list[list[int]], logits: Logits) -> Tensor:
        """The target's own tokens where nothing but a temperature shapes its law: the same, sooner."""
        rows = []
        for sequence, at, scores in zip(batch.sequences, depths, logits, strict=True):
            count = scores.shape[0]
            noise = None if sequence.params.greedy else self._draws.target(sequence, at[:count], count)
            rows.append(choose(scores, sequence.params, noise))
        return _padded(rows, len(depths[0]))

    def _law(self, sequence: Sequence, draft: Draft, row: int, logits: Tensor) -> Float[Tensor, "column vocab"]:
        paths = draft.paths(row) if sequence.params.reads_path else None
        try:
            law = weights(logits, sequence, paths)
        except Exception:  # the others go on when the engine is stepped again
            self._give_up(sequence)
            raise
        return one_hot(law) if sequence.params.greedy and not self._rule.shares_noise else law

    def _check(self, sequence: Sequence, law: Tensor, verdict: Verdict, row: int) -> None:
        """A guess may lead where every token is forbidden, and that is no fault; a text may not."""
        accepted = int(verdict.accepted[row])
        last = int(verdict.path[row, accepted - 1]) + 1 if accepted else 0
        try:
            check_allowed(law[last : last + 1], sequence.params)
        except InvalidRequest:
            self._give_up(sequence)
            raise


def _padded(rows: list[Tensor], columns: int) -> Tensor:
    """Rows of one length, the shorter ones padded with zeros at the end."""
    if all(row.shape[0] == columns for row in rows):
        return rows[0][None] if len(rows) == 1 else torch.stack(rows)
    padded = rows[0].new_zeros(len(rows), columns, *rows[0].shape[1:])
    for place, row in zip(padded, rows, strict=True):
        place[: row.shape[0]] = row
    return padded
