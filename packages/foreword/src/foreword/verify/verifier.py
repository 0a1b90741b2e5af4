"""The verify step: from a round's logits to a verdict, by each request's parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.sampling.draw import Draw, drawn_tokens, one_hot, walk
from foreword.sampling.logits import Columns, weights_or_invalid
from foreword.sampling.noise import extended
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Draft, DraftTree, Request, Verdict
from foreword.verify.base import Follow, Rule

Logits = list[Float[Tensor, "_ vocab"]]
"""Per request: the target's logits after its text and after each draft token."""


@dataclass(frozen=True, slots=True)
class Distributions:
    """Distributions that each request of a round samples from, one per column."""

    weights: Logits
    """Log-weights, not yet one-hot at temperature 0; raw logits where `unscaled`."""
    unscaled: list[bool]
    """Whether drawing applies the temperature: with `follow` and plain parameters."""
    invalid: list[Columns]
    """Columns where a draft path makes a processor fail or forbids every token."""


class Verifier:
    """Applies one rule. Errors of a request's parameters go to `Request.error`."""

    def __init__(self, rule: Rule, draws: NoiseStreams) -> None:
        self._rule = rule
        self._draws = draws

    def verify(
        self, batch: Batch, draft: Draft, distributions: Distributions
    ) -> Verdict:
        """Return the accepted nodes and the target's next token of each request."""
        if not batch.requests:
            return Verdict([], [], 0)
        invalid = distributions.invalid
        rows = distributions.weights
        if self._rule.follow is not None:
            verdict = self._follow_draws(self._rule.follow, batch, draft, rows)
        else:
            greedy = [request.params.greedy for request in batch.requests]
            pairs = zip(rows, greedy, strict=True)
            rows = [one_hot(row) if chosen else row for row, chosen in pairs]
            noise = self._draws.verifying(batch.requests, draft)
            columns = _padded(rows, draft.nodes + 1)
            verdict = self._rule.verify(columns, draft, noise)
        return _truncate(verdict, draft, invalid) if any(invalid) else verdict

    def _follow_draws(
        self,
        follow: Follow,
        batch: Batch,
        draft: Draft,
        distributions: Logits,
    ) -> Verdict:
        """Return the verdict faster: draw until a token matches no draft token."""
        draws = [self._draw(request) for request in batch.requests]
        trees = draft.trees
        rows = zip(distributions, draws, trees, strict=True)
        walked = [walk(*row) for row in rows]
        if None in walked:
            walked = _follow_all(follow, distributions, draws, trees)
        paths, added = map(list, zip(*walked, strict=True))
        return Verdict(paths, added, draft.nodes)

    def _draw(self, request: Request) -> Draw:
        """Return how the token after the text is drawn; weights have a temperature."""
        params = request.params
        heat = params.temperature if params.plain else 1.0
        return heat, self._draws.key(request)

    def distributions(
        self,
        batch: Batch,
        draft: Draft,
        logits: Logits,
    ) -> Distributions:
        """Return each request's distribution at every column."""
        rows = []
        unscaled = []
        invalid = []
        for row, request in enumerate(batch.requests):
            unscaled.append(self._rule.follow is not None and request.params.plain)
            if unscaled[row]:
                rows.append(logits[row])
                invalid.append(frozenset())
                continue
            paths = draft.trees[row].paths if request.params.reads_path else None
            try:
                distribution, columns = weights_or_invalid(logits[row], request, paths)
            except Exception as error:  # noqa: BLE001 - of this request alone; the engine ends it at its commit
                request.error = error
                distribution = torch.zeros_like(logits[row], dtype=torch.float32)
                columns = frozenset()
            rows.append(distribution)
            invalid.append(columns)
        return Distributions(rows, unscaled, invalid)


def _follow_all(
    follow: Follow, rows: Logits, draws: Sequence[Draw], trees: Sequence[DraftTree]
) -> list[tuple[list[int], int]]:
    """Draw all rows at once: on a device, each request would wait for its own draws."""
    paths = [
        (heat, None if key is None else extended(key, path))
        for (heat, key), tree in zip(draws, trees, strict=True)
        for path in tree.paths
    ]
    tokens = iter(drawn_tokens(torch.cat(rows), paths).tolist())
    return [follow([*islice(tokens, len(tree) + 1)], tree) for tree in trees]


def _truncate(
    verdict: Verdict,
    draft: Draft,
    invalid: list[Columns],
) -> Verdict:
    """End each path at its first invalid column; the next round verifies there."""
    paths, added = list(verdict.kept), list(verdict.added)
    for row, (tree, columns) in enumerate(zip(draft.trees, invalid, strict=True)):
        for depth, node in enumerate(paths[row]):
            if node + 1 in columns:
                paths[row], added[row] = paths[row][:depth], tree.tokens[node]
                break
    return Verdict(paths, added, draft.nodes)


def _padded(rows: list[Tensor], columns: int) -> Tensor:
    """Stack rows, padded with zeros at the end to `columns`."""
    if all(row.shape[0] == columns for row in rows):
        return rows[0][None] if len(rows) == 1 else torch.stack(rows)
    padded = rows[0].new_zeros(len(rows), columns, *rows[0].shape[1:])
    for padded_row, row in zip(padded, rows, strict=True):
        padded_row[: row.shape[0]] = row
    return padded
