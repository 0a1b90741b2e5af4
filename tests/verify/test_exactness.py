"""Every rule writes the target's text, and the suite sees rules that do not."""

import pytest
import torch

from distributions import ROWS, chi_square, plain_distribution, surprise
from foreword.budget import StoppingBudget
from foreword.budget.stopping import ConfidenceBudget
from foreword.types import Draft, Noise, Request, SamplingParams, Verdict, Verify
from foreword.verify import RULES
from foreword.verify.block import prefix_acceptance, prefix_weight
from foreword.verify.rejection import (
    acceptance,
    chain_distributions,
    chain_verdict,
    ratios,
)
from foreword.verify.traversal import ascend
from foreword.verify.without_replacement import descend, residual, untried
from foreword_lab.certify.enumeration import FEW_BITS, bias
from foreword_lab.certify.worlds import (
    AllDrafts,
    Drafting,
    World,
    changed,
    chosen,
    chosen_tree,
    drawn,
    drawn_tree,
    repeat,
)
from grids import slow_case

EXACT = 1e-9
VISIBLE = 0.005
"""Total variation that the suite must see."""
TREES = [(2,), (3, 1), (2, 2)]
TREE_RULES = [
    name for name in RULES if RULES[name].trees and not RULES[name].shares_noise
]


def trees(name: str, *branching: int) -> Drafting:
    """Trees drawn as the rule expects them."""
    return drawn_tree(*branching, distinct=RULES[name].lists == "distinct")


def dropped(world: World) -> AllDrafts:
    """Biased under all rules but match: drawn tokens are thrown away by their q."""
    draft, likely = drawn(world)
    assert draft.probs is not None
    confident = draft.probs.gather(2, draft.tokens[..., None])[..., 0] > 0.3
    return AllDrafts(changed(draft, count=confident.cumprod(dim=1).sum(dim=1)), likely)


def last_dropped(drafting: Drafting) -> Drafting:
    """Biased likewise: only a tree's last node is thrown away, by its q."""

    def dropping(world: World) -> AllDrafts:
        draft, likely = drafting(world)
        assert draft.probs is not None
        doubtful = draft.probs[:, -1].gather(1, draft.tokens[:, -1:])[:, 0] < 0.3
        return AllDrafts(changed(draft, count=draft.count - doubtful.long()), likely)

    return dropping


POLICIES = {
    "confidence": ConfidenceBudget(0.6),
}
"""What ends a chain, with thresholds that these worlds come to."""


def ended(policy: StoppingBudget) -> Drafting:
    """A chain ends where the policy says, for the distribution after it."""
    asker = Request(0, [0], 1, SamplingParams(), seed=0)

    def drafting(world: World) -> AllDrafts:
        draft, likely = drawn(world)
        assert draft.probs is not None
        chains = [enumerate(distributions.log()) for distributions in draft.probs]
        on = [[not policy.stops(asker, *level) for level in chain] for chain in chains]
        return AllDrafts(shortened(draft, on), likely)

    return drafting


def shortened(draft: Draft, on: list[list[bool]]) -> Draft:
    """End each chain before the first draft token that does not go on."""
    count = torch.tensor(on).long().cumprod(dim=1).sum(dim=1)
    return changed(draft, count=count)


def ended_by_its_draft_token(name: str) -> Drafting:
    """Biased under all rules but match: the policy knows the drawn token."""
    policy = POLICIES[name]

    def drafting(world: World) -> AllDrafts:
        draft, likely = drawn(world)
        assert draft.probs is not None
        own = draft.probs.gather(2, draft.tokens[..., None])[..., 0]
        on = [[not policy.doubts(value) for value in row] for row in own.tolist()]
        return AllDrafts(shortened(draft, on), likely)

    return drafting


def scheduled_by_its_draft_tokens(world: World) -> AllDrafts:
    """Biased likewise: a draft token is taken back in the round it was drawn in."""
    return last_dropped(drawn)(world)


def chosen_as_if_drawn(*branching: int) -> Drafting:
    """Biased under all rules but match: likeliest tokens, verified as drawn ones."""

    def drafting(world: World) -> AllDrafts:
        draft, likely = chosen_tree(*branching)(world)
        distributions = drawn_tree(*branching, distinct=False)(world).draft
        same = (distributions.tokens == draft.tokens).all(dim=1).nonzero()[:, 0]
        return AllDrafts(repeat(distributions, same), likely)

    return drafting


def rejection_then_target(weights: torch.Tensor, draft: Draft, noise: Noise) -> Verdict:
    """Biased: after a refusal the bonus is drawn from the whole target."""
    p, q = chain_distributions(weights, draft)
    kept = (noise.accept[:, :-1] < acceptance(p, q, draft)).cumprod(dim=1)
    return chain_verdict(kept.sum(dim=1), p, p, noise)


def block_then_target(weights: torch.Tensor, draft: Draft, noise: Noise) -> Verdict:
    """Biased in the same way."""
    p, q = chain_distributions(weights, draft)
    reach = prefix_weight(ratios(p, q, draft))
    left = (reach[..., None] * p - q).clamp(min=0)
    passes = noise.accept[:, :-1] < prefix_acceptance(reach, left, draft)
    accepted = (torch.arange(1, draft.nodes + 1) * passes).amax(dim=1)
    return chain_verdict(accepted, p, p, noise)


def siblings_then_target(weights: torch.Tensor, draft: Draft, noise: Noise) -> Verdict:
    """Biased in the same way, in trees."""
    return descend(weights, draft, noise, untried, lambda left, q: left)


def siblings_not_renormalised(
    weights: torch.Tensor, draft: Draft, noise: Noise
) -> Verdict:
    """Biased: a refused sibling is taken out of q, which no longer sums to one."""

    def refused(q: torch.Tensor, tried: torch.Tensor, token: torch.Tensor):
        return q.masked_fill(tried, 0)

    return descend(weights, draft, noise, refused, residual)


def siblings_as_if_independent(
    weights: torch.Tensor, draft: Draft, noise: Noise
) -> Verdict:
    """Biased: siblings drawn without replacement are verified as independent."""
    return descend(weights, draft, noise, lambda q, tried, token: q, residual)


def traversal_by_the_refused(
    weights: torch.Tensor, draft: Draft, noise: Noise
) -> Verdict:
    """Biased for chains: the weight once x is refused is S / (1 - q(x))."""
    assert draft.probs is not None
    probabilities = draft.probs.gather(2, draft.tokens[..., None])[..., 0]
    refused = iter(probabilities.unbind(dim=1)[::-1])

    def weight(reach: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
        return (left / (1 - next(refused))).clamp(max=1)

    return ascend(weights, draft, noise, weight)


def traversal_unweighed(weights: torch.Tensor, draft: Draft, noise: Noise) -> Verdict:
    """Biased: a path weighs as much after a refusal as before."""
    return ascend(weights, draft, noise, lambda reach, left: reach)


def match_longest(weights: torch.Tensor, draft: Draft, noise: Noise) -> Verdict:
    """Biased: keeps the last draft token whether the target drew it or not."""
    verdict = RULES["match"].verify(weights, draft, noise)
    accepted = verdict.accepted
    accepted = torch.where(accepted == draft.nodes - 1, draft.nodes, accepted)
    node = torch.arange(draft.nodes)
    path = node.where(node < accepted[:, None], -1)
    return Verdict.padded(path, accepted, verdict.bonus)


LONG, SHORT = (World.random(0, vocab=3, depth=depth) for depth in (3, 2))
SINGLE = World.random(2, vocab=3, depth=1)
DISTINCT = drawn_tree(2, 2, distinct=True)
BIASED: dict[str, tuple[Verify, Drafting, World]] = {
    "rejection, residual is the target": (rejection_then_target, drawn, LONG),
    "block, residual is the target": (block_then_target, drawn, LONG),
    "match, last draft token kept unseen": (match_longest, drawn, LONG),
    "siblings, residual is the target": (siblings_then_target, DISTINCT, SHORT),
    "siblings, q not renormalised": (siblings_not_renormalised, DISTINCT, SHORT),
    "siblings, as if independent": (siblings_as_if_independent, DISTINCT, SHORT),
    "traversal, weight by the refused": (traversal_by_the_refused, drawn, LONG),
    "traversal, weight unchanged": (traversal_unweighed, DISTINCT, SHORT),
}


def add_biased(about: str, name: str, drafting: Drafting, world: World) -> None:
    """Add a right rule whose drafts are wrong."""
    BIASED[f"{name}, {about}"] = (RULES[name].verify, drafting, world)


for name in ("rejection", "block"):
    soft = chosen_as_if_drawn(1, 1, 1)
    add_biased("soft distribution of a chosen chain", name, soft, LONG)
for name in RULES:
    if RULES[name].shares_noise:
        continue
    add_biased("unlikely draws dropped", name, dropped, LONG)
    add_biased("a schedule at once", name, scheduled_by_its_draft_tokens, LONG)
    for policy in POLICIES:
        told = ended_by_its_draft_token(policy)
        add_biased(f"{policy} told of the draft token", name, told, LONG)
for name in TREE_RULES:
    soft = chosen_as_if_drawn(2, 2)
    add_biased("soft distribution of chosen siblings", name, soft, SHORT)
    doubtful = last_dropped(trees(name, 2))
    add_biased("an unlikely sibling dropped", name, doubtful, SINGLE)

every_rule = pytest.mark.parametrize("name", RULES)
every_draft = pytest.mark.parametrize("drafting", [drawn, chosen])
every_tree_rule = pytest.mark.parametrize("name", TREE_RULES)
every_bias = pytest.mark.parametrize(
    ("verify", "drafting", "world"), BIASED.values(), ids=BIASED
)


@pytest.mark.sample(3)  # every rule with every draft, in one of the worlds
@every_rule
@every_draft
@pytest.mark.parametrize("seed", range(3))
def test_chains_exactly(name, drafting, seed):
    rule, world = RULES[name], World.random(seed, vocab=3, depth=3)
    assert bias(rule.verify, drafting, world, rule.shares_noise) < EXACT


@pytest.mark.sample(2)
@every_rule
@pytest.mark.parametrize("policy", POLICIES)
def test_chains_that_end_by_a_policy_exactly(name, policy):
    rule, drafting = RULES[name], ended(POLICIES[policy])
    # some chains must end and some must not
    assert len(set(drafting(LONG).draft.count.tolist())) > 1
    assert bias(rule.verify, drafting, LONG, rule.shares_noise) < EXACT


@pytest.mark.parametrize("policy", POLICIES)
def test_match_is_exact_whatever_a_policy_is_told(policy):
    rule, drafting = RULES["match"], ended_by_its_draft_token(policy)
    assert bias(rule.verify, drafting, LONG, rule.shares_noise) < EXACT


@every_tree_rule
@pytest.mark.parametrize(
    ("branching", "seed"),
    [
        *((branching, sum(branching)) for branching in TREES),
        slow_case((2, 1, 1), 8),
        slow_case((3, 1, 1), 8),
    ],
    ids=str,
)
def test_trees_exactly(name, branching, seed):
    world = World.random(seed, vocab=3, depth=len(branching))
    drafting = trees(name, *branching)
    assert bias(RULES[name].verify, drafting, world, gumbel=False) < EXACT


@pytest.mark.parametrize("name", [name for name in RULES if RULES[name].trees])
@pytest.mark.parametrize("branching", [(3,), (2, 1)], ids=str)
def test_chosen_trees_exactly(name, branching):
    rule, world = RULES[name], World.random(1, vocab=3, depth=len(branching))
    assert bias(rule.verify, chosen_tree(*branching), world, rule.shares_noise) < EXACT


@pytest.mark.sample(2)
@every_rule
@every_draft
def test_chains_in_samples(name, drafting):
    rule, world = RULES[name], World.random(7, vocab=4, depth=3)
    assert surprise(rule.verify, drafting, world, rule.shares_noise) < 1


@every_tree_rule
def test_trees_in_samples(name):
    world = World.random(7, vocab=4, depth=2)
    assert surprise(RULES[name].verify, trees(name, 2, 2), world, gumbel=False) < 1


@pytest.mark.parametrize(
    ("drafting", "depth"),
    [(dropped, 3), (chosen_as_if_drawn(1, 1, 1), 3), (chosen_as_if_drawn(2, 1), 2)],
)
def test_match_is_exact_for_every_draft(drafting, depth):
    rule, world = RULES["match"], World.random(0, vocab=3, depth=depth)
    assert bias(rule.verify, drafting, world, rule.shares_noise) < EXACT
    world = World.random(7, vocab=4, depth=depth)
    assert surprise(rule.verify, drafting, world, rule.shares_noise) < 1


@every_bias
def test_bias_is_seen_exactly(verify, drafting, world):
    shares_noise = verify is match_longest
    assert bias(verify, drafting, world, shares_noise, FEW_BITS) > VISIBLE


@pytest.mark.sample(5)
@every_bias
def test_bias_is_seen_in_samples(verify, drafting, world):
    assert surprise(verify, drafting, world, verify is match_longest) > 1


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("change", [torch.argmax, torch.argmin])
def test_chi_square_sees_the_smallest_bias(change, depth):
    distribution = plain_distribution(World.random(7, vocab=4, depth=depth))
    shifted = distribution.clone()
    shifted[change(distribution)] += VISIBLE
    shifted[distribution.argsort()[len(distribution) // 2]] -= VISIBLE
    rng = torch.Generator().manual_seed(1)
    assert (shifted > 0).all()
    right, wrong = (
        one.multinomial(ROWS, replacement=True, generator=rng)
        for one in (distribution, shifted)
    )
    assert chi_square(right, distribution) < 1 < chi_square(wrong, distribution)
