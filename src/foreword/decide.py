"""DECIDE, as the engine needs it: from the logits of a round to a verdict, under every request's own parameters.

Knows laws, noise and the rule; knows nothing about models or drafters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draws import KeyedDraws
from foreword.sampling import Columns, choose, lawful, one_hot, walk
from foreword.types import Batch, Draft, SamplingParams, Sequence, Verdict
from foreword.verify import Follow, Rule

Logits = list[Float[Tensor, "_ vocab"]]
"""One for each sequence: the target's logits after its last committed token and after each of its guesses."""
_SHAPED = SamplingParams(temperature=1)
"""Draws from log-weights as they are."""


class Decider:
    """Applies one rule. `give_up` is called with a sequence whose own parameters fail, before the error is raised."""

    def __init__(self, rule: Rule, draws: KeyedDraws, give_up: Callable[[Sequence], None]) -> None:
        self._rule, self._draws, self._give_up = rule, draws, give_up

    def decide(self, batch: Batch, draft: Draft, logits: Logits) -> Verdict:
        """Which guesses stay, and the target's own token after them."""
        if not batch.sequences:
            return Verdict([], [], 0)
        laws, astray = self._laws(batch, draft, logits)
        if self._rule.follow is not None:
            verdict = self._followed(self._rule.follow, batch, draft, laws)
        else:
            noise = self._draws.deciding(batch.sequences, draft, [tree.depths for tree in draft.trees])
            verdict = self._rule.verify(_padded(laws, draft.nodes + 1), draft, noise)
        return _cut(verdict, draft, astray) if any(astray) else verdict

    def _followed(self, follow: Follow, batch: Batch, draft: Draft, laws: Logits) -> Verdict:
        """What the rule would decide, sooner: the target's own tokens are drawn as far as guesses foresaw them."""
        kept, added = [], []
        for sequence, tree, law in zip(batch.sequences, draft.trees, laws, strict=True):
            params, depths = sequence.params if sequence.params.plain else _SHAPED, tree.depths
            noise = self._draws.foreseeing(sequence, max(depths) + 1)
            path, token = walk(law, params, noise, tree) or follow(choose(law, params, noise, depths), tree)
            kept.append(path)
            added.append(token)
        return Verdict(kept, added, draft.nodes)

    def _laws(self, batch: Batch, draft: Draft, logits: Logits) -> tuple[Logits, list[Columns]]:
        """The law at every column of each sequence, and the columns that have none.

        A rule that follows draws gets the logits where nothing but a temperature shapes the law: drawing sees to that.
        """
        laws, astray = [], []
        for row, sequence in enumerate(batch.sequences):
            if self._rule.follow is not None and sequence.params.plain:
                laws.append(logits[row])
                astray.append(frozenset())
                continue
            paths = draft.trees[row].paths if sequence.params.reads_path else None
            try:
                law, lost = lawful(logits[row], sequence, paths)
            except Exception:  # the others go on when the engine is stepped again
                self._give_up(sequence)
                raise
            laws.append(one_hot(law) if sequence.params.greedy and not self._rule.shares_noise else law)
            astray.append(lost)
        return laws, astray


def _cut(verdict: Verdict, draft: Draft, astray: list[Columns]) -> Verdict:
    """The verdict up to the first guess that no law follows; the next round decides there, as plain text does."""
    kept, added = list(verdict.kept), list(verdict.added)
    for row, (tree, lost) in enumerate(zip(draft.trees, astray, strict=True)):
        for place, node in enumerate(kept[row]):
            if node + 1 in lost:
                kept[row], added[row] = kept[row][:place], tree.tokens[node]
                break
    return Verdict(kept, added, draft.nodes)


def _padded(rows: list[Tensor], columns: int) -> Tensor:
    """Rows of one length, the shorter ones padded with zeros at the end."""
    if all(row.shape[0] == columns for row in rows):
        return rows[0][None] if len(rows) == 1 else torch.stack(rows)
    padded = rows[0].new_zeros(len(rows), columns, *rows[0].shape[1:])
    for place, row in zip(padded, rows, strict=True):
        place[: row.shape[0]] = row
    return padded
