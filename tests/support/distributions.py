"""Whether a rule with a way of drafting keeps the target's distribution.

A rule is a function of weights, draft and noise; so a new rule, or a broken one, is one
more argument.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from jaxtyping import Float, Int
from scipy.stats import chi2
from torch import Tensor

from foreword.types import Draft, Noise, Verdict, Verify
from worlds import Guessing, World, along, next_law, repeat, text

ALMOST_ZERO, ALMOST_ONE = 2.0**-60, 1 - 2.0**-53
"""Uniforms that every test which can be passed passes, and that every test which can be
failed fails.
"""
BACKENDS = torch.arange(1, 4, dtype=torch.float64) / 4
"""Places at which a search looks at once."""
STEPS = 20
"""Steps of a search: each leaves a quarter, all of them 2 ** -40."""


# --- exact
# ------------------------------------------------------------------------------------------------------------


def bias(verify: Verify, guessing: Guessing, world: World, gumbel: bool) -> float:
    """Total variation between what is written and what the target would write, over the
    first depth + 1 tokens.

    Exact, for every draft and all noise. Where a rule wrote less than depth + 1 tokens
    the target goes on alone.
    """
    draft, likely = guessing(world)
    weights = along(world.target, draft).log()
    decided = (over_gumbel if gumbel else over_uniforms)(
        verify, weights, draft
    ) * likely[:, None, None]
    written = torch.zeros(world.vocab ** (world.depth + 1), dtype=torch.float64)
    for column, token in product(range(draft.nodes + 1), range(world.vocab)):
        bonus = torch.full((len(likely), 1), token)
        _spread(
            world,
            torch.cat((text(draft, column), bonus), dim=1),
            decided[:, column, token],
            written,
        )
    plain = torch.zeros_like(written)
    _spread(
        world,
        torch.zeros(1, 0, dtype=torch.long),
        torch.ones(1, dtype=torch.float64),
        plain,
    )
    return (written - plain).abs().sum().item() / 2


def _spread(world: World, prefix: Tensor, mass: Tensor, onto: Tensor) -> None:
    """Let the target write on from each prefix, and add the mass of each text to its
    cell.
    """
    while prefix.shape[1] <= world.depth:
        mass = (mass[:, None] * next_law(world.target, prefix)).flatten()
        token = torch.arange(world.vocab).repeat(len(prefix))[:, None]
        prefix = torch.cat((prefix.repeat_interleave(world.vocab, dim=0), token), dim=1)
    onto.index_add_(0, cells(prefix, world.vocab), mass)


def cells(tokens: Int[Tensor, "row length"], vocab: int) -> Int[Tensor, "row"]:
    """One number for each text: its tokens read as digits."""
    return (tokens * vocab ** torch.arange(tokens.shape[1] - 1, -1, -1)).sum(dim=1)


def over_uniforms(
    verify: Verify, weights: Tensor, draft: Draft
) -> Float[Tensor, "row column vocab"]:
    """P(path ends at column, bonus | draft), integrated over uniforms that the rule
    compares with thresholds.

    What a rule decides is a tree of such tests, and the tree is found from outside, box
    by box of acceptance draws. In a box some nodes are settled, and all others hold a
    draw that fails wherever one can. If the path then ends elsewhere once a single one
    of them passes, the rule has tested that node: its threshold, found by searching,
    splits the box. If none of them matters, none was tested, whatever they hold, so the
    box is settled and one number says where its path ends. The bonus is one step of a
    CDF for each token, found by searching too.
    """
    rows, columns, vocab = weights.shape
    decided = torch.zeros(rows, columns, vocab, dtype=torch.float64)
    row, mass = torch.arange(rows), torch.ones(rows, dtype=torch.float64)
    accept = torch.full((rows, columns), ALMOST_ONE, dtype=torch.float64)
    while len(row):
        matters = _tested(verify, weights[row], repeat(draft, row), accept)
        node, split = matters.byte().argmax(dim=1), matters.any(dim=1)
        done = ~split
        steps = _bonus(
            verify, weights[row[done]], repeat(draft, row[done]), accept[done]
        )
        end = _ends(verify, weights[row[done]], repeat(draft, row[done]), accept[done])
        decided.index_put_((row[done], end), mass[done, None] * steps, accumulate=True)
        row, mass, accept, node = row[split], mass[split], accept[split], node[split]
        threshold = _threshold(verify, weights[row], repeat(draft, row), accept, node)
        passed, failed = (
            accept.scatter(1, node[:, None], u[:, None])
            for u in (threshold / 2, (1 + threshold) / 2)
        )
        row, accept = row.repeat(2), torch.cat((passed, failed))
        mass = torch.cat((mass * threshold, mass * (1 - threshold)))
    return decided


def _tested(verify: Verify, weights: Tensor, draft: Draft, accept: Tensor) -> Tensor:
    """Whether each node of each box is not settled yet and moves the end of the path
    once it passes.
    """
    end, moved = _ends(verify, weights, draft, accept), []
    for node in range(draft.nodes):
        passed = accept.clone()
        passed[:, node] = ALMOST_ZERO
        moved.append(
            (accept[:, node] == ALMOST_ONE)
            & (_ends(verify, weights, draft, passed) != end)
        )
    return (
        torch.stack(moved, dim=1)
        if moved
        else torch.zeros(len(end), 1, dtype=torch.bool)
    )


def _threshold(
    verify: Verify, weights: Tensor, draft: Draft, accept: Tensor, node: Tensor
) -> Float[Tensor, "box"]:
    """The uniform up to which a node of each box, one that was tested, passes."""
    failed = _ends(verify, weights, draft, accept)

    def passes(index: Tensor, uniform: Tensor) -> Tensor:
        tried = accept[index].scatter(1, node[index, None], uniform[:, None])
        return (
            _ends(verify, weights[index], repeat(draft, index), tried) != failed[index]
        )

    return _search(passes, len(node))


def _bonus(
    verify: Verify, weights: Tensor, draft: Draft, accept: Tensor
) -> Float[Tensor, "box vocab"]:
    """P(bonus) in each box."""
    boxes, vocab = len(weights), weights.shape[2]

    def holds(index: Tensor, uniform: Tensor) -> Tensor:
        box, token = index % boxes, index // boxes
        return (
            _ask(verify, weights[box], repeat(draft, box), accept[box], uniform).bonus
            <= token
        )

    upto = _search(holds, boxes * vocab).reshape(vocab, boxes)
    return torch.diff(upto, dim=0, prepend=torch.zeros(1, boxes, dtype=torch.float64)).T


def _search(
    holds: Callable[[Tensor, Tensor], Tensor], rows: int
) -> Float[Tensor, "row"]:
    """For each row the number in [0, 1] up to which a condition on (row,
    number) holds.
    """
    low, size = torch.zeros(rows, dtype=torch.float64), 1.0
    index = torch.arange(rows).repeat_interleave(len(BACKENDS))
    for _ in range(STEPS if rows else 0):
        places = low[:, None] + size * BACKENDS
        size /= len(BACKENDS) + 1
        low += size * holds(index, places.flatten()).reshape(rows, -1).sum(dim=1)
    # What a search cannot tell from an end is that end, so that the certain and the
    # impossible are exactly so.
    return low.where(low > 0, 0.0).where(low < 1 - 1.5 * size, 1.0)


def _ends(
    verify: Verify, weights: Tensor, draft: Draft, accept: Tensor
) -> Int[Tensor, "box"]:
    """The column at which each path ends."""
    return ends(_ask(verify, weights, draft, accept, torch.full((len(weights),), 0.5)))


def ends(verdict: Verdict) -> Int[Tensor, "row"]:
    """The column at which each path ends: 0 where nothing was accepted."""
    whole = torch.cat(
        (torch.full_like(verdict.bonus, -1)[:, None], verdict.path), dim=1
    )
    return whole.gather(1, verdict.accepted[:, None])[:, 0] + 1


def _ask(
    verify: Verify, weights: Tensor, draft: Draft, accept: Tensor, bonus: Tensor
) -> Verdict:
    """Verify with these uniforms; the same bonus draw wherever the path may end."""
    return verify(
        weights, draft, Noise(None, accept, bonus[:, None].expand(-1, weights.shape[1]))
    )


def over_gumbel(
    verify: Verify, weights: Tensor, draft: Draft
) -> Float[Tensor, "row column vocab"]:
    """P(path ends at column, bonus | draft) of a rule that sees noise only through
    argmax(weights + gumbel).

    By the Gumbel-max theorem that is the target's distribution at each column,
    independently: enumerate the winners.
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
        # every row once, so no sum is lost
        decided[row, ends(verdict), verdict.bonus] += mass
    return decided


# --- sampled
# ----------------------------------------------------------------------------------------------------------


def surprise(
    verify: Verify, guessing: Guessing, world: World, seed: int = 0, rows: int = 200_000
) -> float:
    """Chi-square of the first `depth` tokens of many runs, over its 99.99 % quantile:
    above 1, the distribution differs.
    """
    rng = torch.Generator().manual_seed(seed)
    draft_tokens = guessing(world)
    index = draft_tokens.likely.multinomial(rows, replacement=True, generator=rng)
    weights, draft = (
        along(world.target, draft_tokens.draft).log()[index],
        repeat(draft_tokens.draft, index),
    )
    verdict = verify(weights, draft, random_noise(weights.shape, rng))
    text = torch.zeros(rows, 0, dtype=torch.long)
    for depth in range(world.depth):
        plain = next_law(world.target, text).multinomial(1, generator=rng)[:, 0]
        added = verdict.bonus.where(verdict.accepted == depth, plain)
        draft_token = draft.tokens.gather(1, verdict.path[:, depth, None].clamp(min=0))[
            :, 0
        ]
        text = torch.cat(
            (text, draft_token.where(verdict.accepted > depth, added)[:, None]), dim=1
        )
    return chi_square(cells(text, world.vocab), plain_law(world))


def plain_law(world: World) -> Float[Tensor, "text"]:
    """Probability of every text of `depth` tokens under the target."""
    distribution = torch.ones(1, dtype=torch.float64)
    for table in world.target[: world.depth]:
        distribution = (
            distribution[:, None] * table.reshape(len(distribution), world.vocab)
        ).flatten()
    return distribution


def chi_square(
    observed: Int[Tensor, "row"], distribution: Float[Tensor, "cell"]
) -> float:
    """Pearson's statistic of the observed cells, as a share of its 99.99 % quantile."""
    expected = distribution * len(observed)
    counts = observed.bincount(minlength=len(distribution))
    return ((counts - expected) ** 2 / expected).sum().item() / float(
        chi2.ppf(0.9999, len(distribution) - 1)
    )


def random_noise(shape: torch.Size, rng: torch.Generator) -> Noise:
    """Independent noise for weights of this shape [row, column, vocab]."""
    gumbel = -torch.empty(shape, dtype=torch.float64).exponential_(generator=rng).log()
    accept, bonus = torch.rand(2, *shape[:2], generator=rng, dtype=torch.float64)
    return Noise(gumbel, accept, bonus)
