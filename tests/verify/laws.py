"""The law suite: does a rule, fed by a way of guessing, write what the target alone would have written?

Knows a rule only as a function of weights, draft and noise; so a new rule, or a broken one, is one more argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from scipy.stats import chi2
from torch import Tensor

from foreword.types import Draft, Noise, Verdict, Verify

ALMOST_ONE = 1 - 2.0**-53
"""The largest float64 below 1."""


@dataclass(frozen=True)
class World:
    """Two small language models without a prompt: tables of next-token laws, `target[d]` of shape [vocab] * (d + 1)."""

    target: tuple[Tensor, ...]
    drafter: tuple[Tensor, ...]

    @classmethod
    def random(cls, seed: int, vocab: int, depth: int) -> World:
        """Laws that depend on the whole context; the drafter half resembles the target."""
        rng = torch.Generator().manual_seed(seed)
        shapes = [(vocab,) * (d + 1) for d in range(depth + 1)]
        target = [torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes]
        drafter = [t + torch.randn(t.shape, generator=rng, dtype=torch.float64) for t in target[:-1]]
        return cls(tuple(t.softmax(-1) for t in target), tuple(t.softmax(-1) for t in drafter))

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return len(self.target[0])

    @property
    def depth(self) -> int:
        """Length of the chains that are drafted."""
        return len(self.drafter)


def along(tables: tuple[Tensor, ...], tokens: Int[Tensor, "row depth"]) -> Float[Tensor, "row node vocab"]:
    """The laws met on the way along each row of tokens."""
    return torch.stack([next_law(tables, tokens[:, :d]) for d in range(len(tables))], dim=1)


def next_law(tables: tuple[Tensor, ...], prefix: Int[Tensor, "row length"]) -> Float[Tensor, "row vocab"]:
    """The law of the token after each prefix."""
    table = tables[prefix.shape[1]]
    return table[tuple(prefix.T)] if prefix.shape[1] else table.expand(len(prefix), -1)


class Guesses(NamedTuple):
    """Every chain that may be drafted, and how likely each one is."""

    draft: Draft
    likely: Float[Tensor, "row"]


Guessing = Callable[[World], Guesses]


def drawn(world: World) -> Guesses:
    """Each token is drawn from the drafter's law."""
    tokens = torch.tensor(list(product(range(world.vocab), repeat=world.depth)))
    laws = along(world.drafter, tokens)
    likely = laws.gather(2, tokens[..., None])[..., 0].prod(dim=1)
    return Guesses(chain(tokens, laws), likely)


def chosen(world: World) -> Guesses:
    """Each token is the drafter's likeliest: one chain, for certain."""
    tokens = torch.zeros(1, 0, dtype=torch.long)
    for _ in range(world.depth):
        tokens = torch.cat((tokens, next_law(world.drafter, tokens).argmax(dim=1, keepdim=True)), dim=1)
    return Guesses(chain(tokens, None), torch.ones(1, dtype=torch.float64))


def chain(tokens: Int[Tensor, "row depth"], probs: Float[Tensor, "row depth vocab"] | None) -> Draft:
    """A draft of full-length chains."""
    rows, depth = tokens.shape
    parents = torch.arange(-1, depth - 1).expand(rows, -1)
    return Draft(tokens=tokens, parents=parents, count=torch.full((rows,), depth), probs=probs)


def repeat(draft: Draft, index: Int[Tensor, "row"]) -> Draft:
    """The rows of a draft named by index."""
    probs = None if draft.probs is None else draft.probs[index]
    return Draft(draft.tokens[index], draft.parents[index], draft.count[index], probs, draft.chain)


# --- exact ------------------------------------------------------------------------------------------------------------


def bias(verify: Verify, guessing: Guessing, world: World, gumbel: bool) -> float:
    """Total variation between what is written and what the target would write, over the first depth + 1 tokens.

    Exact, for every chain and all noise. Where a rule wrote less than depth + 1 tokens the target goes on alone.
    """
    draft, likely = guessing(world)
    weights = along(world.target, draft.tokens).log()
    decided = (over_gumbel if gumbel else over_uniforms)(verify, weights, draft) * likely[:, None, None]
    written = torch.zeros(world.vocab ** (world.depth + 1), dtype=torch.float64)
    for accepted, token in product(range(world.depth + 1), range(world.vocab)):
        bonus = torch.full((len(likely), 1), token)
        _spread(world, torch.cat((draft.tokens[:, :accepted], bonus), dim=1), decided[:, accepted, token], written)
    plain = torch.zeros_like(written)
    _spread(world, torch.zeros(1, 0, dtype=torch.long), torch.ones(1, dtype=torch.float64), plain)
    return (written - plain).abs().sum().item() / 2


def _spread(world: World, prefix: Tensor, mass: Tensor, onto: Tensor) -> None:
    """Let the target write on from each prefix, and add the mass of each text to its cell."""
    while prefix.shape[1] <= world.depth:
        mass = (mass[:, None] * next_law(world.target, prefix)).flatten()
        token = torch.arange(world.vocab).repeat(len(prefix))[:, None]
        prefix = torch.cat((prefix.repeat_interleave(world.vocab, dim=0), token), dim=1)
    onto.index_add_(0, cells(prefix, world.vocab), mass)


def cells(tokens: Int[Tensor, "row length"], vocab: int) -> Int[Tensor, "row"]:
    """One number for each text: its tokens read as digits."""
    return (tokens * vocab ** torch.arange(tokens.shape[1] - 1, -1, -1)).sum(dim=1)


def over_uniforms(verify: Verify, weights: Tensor, draft: Draft) -> Float[Tensor, "row accepted vocab"]:
    """P(accepted, bonus | chain), integrated over the uniforms of a rule that compares each with a threshold.

    The thresholds are found by bisection through the rule itself. Between them its decision is constant, so that one
    call in each box is the whole integral: 2 ** depth boxes of acceptance draws, and one step of a CDF for each token.
    """
    rows, columns, vocab = weights.shape
    depth = columns - 1
    thresholds = torch.stack([_threshold(verify, weights, draft, node) for node in range(depth)], dim=1)
    boxes = torch.tensor(list(product((True, False), repeat=depth)))
    row, below = torch.arange(rows).repeat_interleave(len(boxes)), boxes.repeat(rows, 1)
    thresholds, weights, draft = thresholds[row], weights[row], repeat(draft, row)
    mass = torch.where(below, thresholds, 1 - thresholds).prod(dim=1)
    accept = _spare(torch.where(below, thresholds / 2, (1 + thresholds) / 2))
    accepted = _ask(verify, weights, draft, accept, torch.full((len(row),), 0.5)).accepted
    decided = torch.zeros(rows, columns, vocab, dtype=torch.float64)
    reached = torch.zeros(len(row), dtype=torch.float64)
    for token in torch.arange(vocab):
        upto = _bisect(lambda u, t=token: _ask(verify, weights, draft, accept, u).bonus <= t, len(row))
        decided.index_put_((row, accepted, token), mass * (upto - reached), accumulate=True)
        reached = upto
    return decided


def _threshold(verify: Verify, weights: Tensor, draft: Draft, node: int) -> Float[Tensor, "row"]:
    """The uniform up to which this node stays, when those before it stay and those after it go if they can."""
    accept = torch.full(weights.shape[:2], ALMOST_ONE, dtype=torch.float64)
    accept[:, :node] = 2.0**-60
    half = torch.full((len(weights),), 0.5)

    def stays(uniform: Tensor) -> Tensor:
        accept[:, node] = uniform
        return _ask(verify, weights, draft, accept, half).accepted > node

    return _bisect(stays, len(weights))


def _bisect(holds: Callable[[Tensor], Tensor], rows: int) -> Float[Tensor, "row"]:
    """The largest number in [0, 1] up to which a monotone condition holds, for each row."""
    low, high = torch.zeros(rows, dtype=torch.float64), torch.ones(rows, dtype=torch.float64)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = middle.where(holds(middle), low), high.where(holds(middle), middle)
    # What bisection cannot tell from an end is that end, so that the certain and the impossible are exactly so.
    return high.where(high > 2.0**-48, 0.0).where(high < 1 - 2.0**-48, 1.0)


def _spare(accept: Tensor) -> Tensor:
    """Add the column of acceptance draws that no node uses."""
    return torch.cat((accept, torch.full((len(accept), 1), 0.5)), dim=1)


def _ask(verify: Verify, weights: Tensor, draft: Draft, accept: Tensor, bonus: Tensor) -> Verdict:
    """Judge with these uniforms; the same bonus draw wherever the path may end."""
    return verify(weights, draft, Noise(None, accept, bonus[:, None].expand(-1, weights.shape[1])))


def over_gumbel(verify: Verify, weights: Tensor, draft: Draft) -> Float[Tensor, "row accepted vocab"]:
    """P(accepted, bonus | chain) of a rule that sees noise only through argmax(weights + gumbel).

    By the Gumbel-max theorem that is the target's law at each position, independently: enumerate the winners.
    """
    rows, columns, vocab = weights.shape
    row = torch.arange(rows)
    decided = torch.zeros(rows, columns, vocab, dtype=torch.float64)
    unused = torch.full((rows, columns), 0.5)
    for winners in product(range(vocab), repeat=columns):
        winner = torch.tensor(winners).expand(rows, -1)[..., None]
        gumbel = torch.zeros_like(weights).scatter_(2, winner, 1e6)
        mass = weights.gather(2, winner)[..., 0].sum(dim=1).exp()
        verdict = verify(weights, draft, Noise(gumbel, unused, unused))
        decided[row, verdict.accepted, verdict.bonus] += mass  # every row once, so no sum is lost
    return decided


# --- sampled ----------------------------------------------------------------------------------------------------------


def surprise(verify: Verify, guessing: Guessing, world: World, seed: int = 0, rows: int = 200_000) -> float:
    """Chi-square of the first `depth` tokens of many runs, over its 99.99 % quantile: above 1, the law differs."""
    rng = torch.Generator().manual_seed(seed)
    guesses = guessing(world)
    draft = repeat(guesses.draft, guesses.likely.multinomial(rows, replacement=True, generator=rng))
    weights = along(world.target, draft.tokens).log()
    verdict = verify(weights, draft, random_noise(weights.shape, rng))
    text = torch.zeros(rows, 0, dtype=torch.long)
    for depth in range(world.depth):
        plain = next_law(world.target, text).multinomial(1, generator=rng)[:, 0]
        added = verdict.bonus.where(verdict.accepted == depth, plain)
        token = draft.tokens[:, depth].where(verdict.accepted > depth, added)
        text = torch.cat((text, token[:, None]), dim=1)
    return chi_square(cells(text, world.vocab), plain_law(world))


def plain_law(world: World) -> Float[Tensor, "text"]:
    """Probability of every text of `depth` tokens under the target."""
    law = torch.ones(1, dtype=torch.float64)
    for table in world.target[: world.depth]:
        law = (law[:, None] * table.reshape(len(law), world.vocab)).flatten()
    return law


def chi_square(observed: Int[Tensor, "row"], law: Float[Tensor, "cell"]) -> float:
    """Pearson's statistic of the observed cells, as a share of its 99.99 % quantile."""
    expected = law * len(observed)
    counts = observed.bincount(minlength=len(law))
    return ((counts - expected) ** 2 / expected).sum().item() / float(chi2.ppf(0.9999, len(law) - 1))


def random_noise(shape: torch.Size, rng: torch.Generator) -> Noise:
    """Independent noise for weights of this shape [row, column, vocab]."""
    gumbel = -torch.empty(shape, dtype=torch.float64).exponential_(generator=rng).log()
    accept, bonus = torch.rand(2, *shape[:2], generator=rng, dtype=torch.float64)
    return Noise(gumbel, accept, bonus)
