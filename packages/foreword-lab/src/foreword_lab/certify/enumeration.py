"""Exact enumeration of what a verification rule writes, over small vocabularies.

A rule is a function of weights, draft and noise, so a new rule, or a broken one, is one
more argument.
"""

from collections.abc import Callable
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.types import Draft, Noise, Verdict, Verify
from foreword_lab.certify.worlds import (
    Drafting,
    World,
    along,
    next_distribution,
    repeat,
    text,
)

ALMOST_ZERO, ALMOST_ONE = 2.0**-60, 1 - 2.0**-53
"""Uniforms that every test which can be passed passes, and that every test which can be
failed fails.
"""
BITS, FEW_BITS = 36, 12
"""Bits of a threshold that is searched for.

Few are enough to see a bias: an error of 2 ** -12 is a twentieth of the smallest one
that a test must see.
"""


def bias(
    verify: Verify, drafting: Drafting, world: World, gumbel: bool, bits: int = BITS
) -> float:
    """Total variation between what is written and what the target would write, over the
    first depth + 1 tokens.

    Exact, for every draft and all noise. Where a rule wrote less than depth + 1 tokens
    the target goes on alone.
    """
    draft, likely = drafting(world)
    weights = along(world.target, draft).log()
    decided = (
        over_gumbel(verify, weights, draft)
        if gumbel
        else over_uniforms(verify, weights, draft, bits)
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
        mass = (mass[:, None] * next_distribution(world.target, prefix)).flatten()
        token = torch.arange(world.vocab).repeat(len(prefix))[:, None]
        prefix = torch.cat((prefix.repeat_interleave(world.vocab, dim=0), token), dim=1)
    onto.index_add_(0, cells(prefix, world.vocab), mass)


def cells(tokens: Int[Tensor, "row length"], vocab: int) -> Int[Tensor, "row"]:
    """One number for each text: its tokens read as digits."""
    return (tokens * vocab ** torch.arange(tokens.shape[1] - 1, -1, -1)).sum(dim=1)


def over_uniforms(
    verify: Verify, weights: Tensor, draft: Draft, bits: int = BITS
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
        bonus = _bonus(
            verify, weights[row[done]], repeat(draft, row[done]), accept[done], bits
        )
        end = _ends(verify, weights[row[done]], repeat(draft, row[done]), accept[done])
        decided.index_put_((row[done], end), mass[done, None] * bonus, accumulate=True)
        row, mass = row[split], mass[split]
        accept, node = accept[split], node[split]
        threshold = _threshold(
            verify, weights[row], repeat(draft, row), accept, node, bits
        )
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
    verify: Verify,
    weights: Tensor,
    draft: Draft,
    accept: Tensor,
    node: Tensor,
    bits: int,
) -> Float[Tensor, "box"]:
    """The uniform up to which a node of each box, one that was tested, passes."""
    failed = _ends(verify, weights, draft, accept)

    def passes(index: Tensor, uniform: Tensor) -> Tensor:
        tried = accept[index].scatter(1, node[index, None], uniform[:, None])
        return (
            _ends(verify, weights[index], repeat(draft, index), tried) != failed[index]
        )

    return _search(passes, len(node), bits)


def _bonus(
    verify: Verify, weights: Tensor, draft: Draft, accept: Tensor, bits: int
) -> Float[Tensor, "box vocab"]:
    """P(bonus) in each box."""
    boxes, vocab = len(weights), weights.shape[2]

    def holds(index: Tensor, uniform: Tensor) -> Tensor:
        box, token = index % boxes, index // boxes
        return (
            _ask(verify, weights[box], repeat(draft, box), accept[box], uniform).bonus
            <= token
        )

    upto = _search(holds, boxes * (vocab - 1), bits).reshape(vocab - 1, boxes)
    ends = torch.zeros(1, boxes, dtype=torch.float64)
    return torch.diff(upto, dim=0, prepend=ends, append=ends + 1).T


def _search(
    holds: Callable[[Tensor, Tensor], Tensor], rows: int, bits: int
) -> Float[Tensor, "row"]:
    """For each row the number in [0, 1] up to which a condition on (row,
    number) holds.

    Few rows look at seven places at once: there the calls cost more than the numbers.
    """
    low, size = torch.zeros(rows, dtype=torch.float64), 1.0
    places = 2.0 ** (3 if rows < 1000 else 1)
    at_once = torch.arange(1, places, dtype=torch.float64)
    index = torch.arange(rows).repeat_interleave(len(at_once))
    while rows and size > 2.0**-bits:
        size /= places
        tried = low[:, None] + size * at_once
        low += size * holds(index, tried.flatten()).reshape(rows, -1).sum(dim=1)
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
