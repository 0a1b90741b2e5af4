"""Every rule writes what the target would have written, and the suite that says so sees
rules that do not.
"""

import pytest
import torch

from distributions import ROWS, chi_square, plain_distribution, surprise
from foreword.budget import (
    AcceptanceBudget,
    AdaEdlBudget,
    ConfidenceBudget,
    DraftBudget,
    SvipBudget,
)
from foreword.budget.learned import AcceptanceModel, LogisticModel
from foreword.certify.enumeration import FEW_BITS, bias
from foreword.certify.worlds import (
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
    """Biased under all rules but match: a drawn token is thrown away because the
    drafter computes little of it.
    """
    draft, likely = drawn(world)
    assert draft.probs is not None
    confident = draft.probs.gather(2, draft.tokens[..., None])[..., 0] > 0.3
    return AllDrafts(changed(draft, count=confident.cumprod(dim=1).sum(dim=1)), likely)


def last_dropped(drafting: Drafting) -> Drafting:
    """Biased likewise: only the last node of a tree is thrown away, and only where the
    drafter computes little of it.
    """

    def dropping(world: World) -> AllDrafts:
        draft, likely = drafting(world)
        assert draft.probs is not None
        doubtful = draft.probs[:, -1].gather(1, draft.tokens[:, -1:])[:, 0] < 0.3
        return AllDrafts(changed(draft, count=draft.count - doubtful.long()), likely)

    return dropping


STRAIGHT = LogisticModel((0.0,) * 20, (1.0,) * 20, (1.0, *(0.0,) * 20))
"""A draft token is kept as often as its distribution's likeliest token is drawn."""
POLICIES = {
    "confidence": ConfidenceBudget(0.6),
    "svip": SvipBudget(),
    "adaedl": AdaEdlBudget(0.65),
    "acceptance": AcceptanceBudget(AcceptanceModel(STRAIGHT, STRAIGHT)),
}
"""What ends a chain, with thresholds that these worlds come to."""


def ended(policy: DraftBudget) -> Drafting:
    """A chain ends where the policy says so, for the distribution that follows what
    was drawn.
    """
    asker = Request(0, [0], 1, SamplingParams(), seed=0)

    def drafting(world: World) -> AllDrafts:
        draft, likely = drawn(world)
        assert draft.probs is not None
        on = [
            [
                not policy.stops(asker, depth, distribution.log())
                for depth, distribution in enumerate(distributions)
            ]
            for distributions in draft.probs
        ]
        return AllDrafts(
            changed(draft, count=torch.tensor(on).long().cumprod(dim=1).sum(dim=1)),
            likely,
        )

    return drafting


def ended_by_its_draft_token(name: str) -> Drafting:
    """Biased under all rules but match: the policy is told of the token that was drawn,
    which then is left out.
    """
    policy = POLICIES[name]

    def drafting(world: World) -> AllDrafts:
        draft, likely = drawn(world)
        assert draft.probs is not None
        own = draft.probs.gather(2, draft.tokens[..., None])[..., 0]
        told = -own.log() if name in ("svip", "adaedl") else own
        on = [[not policy.doubts(value) for value in row] for row in told.tolist()]
        return AllDrafts(
            changed(draft, count=torch.tensor(on).long().cumprod(dim=1).sum(dim=1)),
            likely,
        )

    return drafting


def scheduled_by_its_draft_tokens(world: World) -> AllDrafts:
    """Biased likewise: a schedule that takes one draft token back in the round it was
    drawn in, not in the next.
    """
    return last_dropped(drawn)(world)


def twins_dropped(world: World) -> AllDrafts:
    """Biased under rules for independent lists: the second of two equal siblings says
    nothing new and is left out.
    """
    draft, likely = drawn_tree(2, distinct=False)(world)
    twins = draft.tokens[:, 0] == draft.tokens[:, 1]
    return AllDrafts(changed(draft, count=draft.count - twins.long()), likely)


def chosen_as_if_drawn(*branching: int) -> Drafting:
    """Biased under all rules but match: the likeliest tokens, verified by the soft
    distribution they were not drawn from.
    """

    def drafting(world: World) -> AllDrafts:
        draft, likely = chosen_tree(*branching)(world)
        distributions = drawn_tree(*branching, distinct=False)(world).draft
        return AllDrafts(
            repeat(
                distributions,
                (distributions.tokens == draft.tokens).all(dim=1).nonzero()[:, 0],
            ),
            likely,
        )

    return drafting


def rejection_then_target(weights: torch.Tensor, draft: Draft, noise: Noise) -> Verdict:
    """Biased: after a refusal the bonus is drawn from the target, not from what is left
    of it.
    """
    p, q = chain_distributions(weights, draft)
    kept = (noise.accept[:, :-1] < acceptance(p, q, draft)).cumprod(dim=1)
    return chain_verdict(kept.sum(dim=1), p, p, noise)


def block_then_target(weights: torch.Tensor, draft: Draft, noise: Noise) -> Verdict:
    """Biased in the same way."""
    p, q = chain_distributions(weights, draft)
    reach = prefix_weight(ratios(p, q, draft))
    passes = noise.accept[:, :-1] < prefix_acceptance(
        reach, (reach[..., None] * p - q).clamp(min=0), draft
    )
    accepted = (torch.arange(1, draft.nodes + 1) * passes).amax(dim=1)
    return chain_verdict(accepted, p, p, noise)


def siblings_then_target(weights: torch.Tensor, draft: Draft, noise: Noise) -> Verdict:
    """Biased in the same way, in trees."""
    return descend(weights, draft, noise, untried, lambda left, q: left)


def siblings_not_renormalised(
    weights: torch.Tensor, draft: Draft, noise: Noise
) -> Verdict:
    """Biased: a sibling that was refused is taken out of q, and q no longer sums to
    one.
    """
    return descend(
        weights,
        draft,
        noise,
        lambda distribution, tried, token: distribution.masked_fill(tried, 0.0),
        residual,
    )


def siblings_as_if_independent(
    weights: torch.Tensor, draft: Draft, noise: Noise
) -> Verdict:
    """Biased: siblings drawn without replacement are verified as if each had been drawn
    from the whole distribution.
    """
    return RULES["specinfer"].verify(weights, draft, noise)


def traversal_by_the_refused(
    weights: torch.Tensor, draft: Draft, noise: Noise
) -> Verdict:
    """Biased: once x is refused the weight is S / (1 - q(x)), as one public
    implementation has it. For chains.
    """
    assert draft.probs is not None
    probabilities = draft.probs.gather(2, draft.tokens[..., None])[..., 0]
    refused = iter(probabilities.unbind(dim=1)[::-1])
    return ascend(
        weights,
        draft,
        noise,
        lambda reach, left: (left / (1 - next(refused))).clamp(max=1),
    )


def traversal_unweighed(weights: torch.Tensor, draft: Draft, noise: Noise) -> Verdict:
    """Biased: a path weighs as much after a refusal as before."""
    return ascend(weights, draft, noise, lambda reach, left: reach)


def match_longest(weights: torch.Tensor, draft: Draft, noise: Noise) -> Verdict:
    """Biased: keeps the last draft token whether the target drew it or not."""
    verdict = RULES["match"].verify(weights, draft, noise)
    accepted = torch.where(
        verdict.accepted == draft.nodes - 1, draft.nodes, verdict.accepted
    )
    node = torch.arange(draft.nodes)
    return Verdict.padded(
        node.where(node < accepted[:, None], -1), accepted, verdict.bonus
    )


LONG, SHORT = (World.random(0, vocab=3, depth=depth) for depth in (3, 2))
SINGLE = World.random(2, vocab=3, depth=1)
BIASED: dict[str, tuple[Verify, Drafting, World]] = {
    "rejection, residual is the target": (rejection_then_target, drawn, LONG),
    "block, residual is the target": (block_then_target, drawn, LONG),
    "match, last draft token kept unseen": (match_longest, drawn, LONG),
    "siblings, residual is the target": (
        siblings_then_target,
        drawn_tree(2, 2, distinct=True),
        SHORT,
    ),
    "siblings, q not renormalised": (
        siblings_not_renormalised,
        drawn_tree(2, 2, distinct=True),
        SHORT,
    ),
    "siblings, distinct as if independent": (
        siblings_as_if_independent,
        drawn_tree(2, 2, distinct=True),
        SHORT,
    ),
    "traversal, weight by the refused": (traversal_by_the_refused, drawn, LONG),
    "traversal, weight unchanged": (
        traversal_unweighed,
        drawn_tree(2, 2, distinct=True),
        SHORT,
    ),
    **{
        f"{name}, soft distribution of a chosen chain": (
            RULES[name].verify,
            chosen_as_if_drawn(1, 1, 1),
            LONG,
        )
        for name in ("rejection", "block")
    },
    **{
        f"{name}, unlikely draws dropped": (RULES[name].verify, dropped, LONG)
        for name in RULES
        if not RULES[name].shares_noise
    },
    **{
        f"{name}, {policy} told of the draft token": (
            RULES[name].verify,
            ended_by_its_draft_token(policy),
            LONG,
        )
        for name in RULES
        for policy in POLICIES
        if not RULES[name].shares_noise
    },
    **{
        f"{name}, a schedule at once": (
            RULES[name].verify,
            scheduled_by_its_draft_tokens,
            LONG,
        )
        for name in RULES
        if not RULES[name].shares_noise
    },
    **{
        f"{name}, soft distribution of chosen siblings": (
            RULES[name].verify,
            chosen_as_if_drawn(2, 2),
            SHORT,
        )
        for name in TREE_RULES
    },
    **{
        f"{name}, an unlikely sibling dropped": (
            RULES[name].verify,
            last_dropped(trees(name, 2)),
            SINGLE,
        )
        for name in TREE_RULES
    },
    **{
        f"{name}, twins dropped": (RULES[name].verify, twins_dropped, SINGLE)
        for name in TREE_RULES
        if RULES[name].lists == "independent"
    },
}

every_rule = pytest.mark.parametrize("name", RULES)
every_draft = pytest.mark.parametrize("drafting", [drawn, chosen])
every_tree = pytest.mark.parametrize("branching", TREES, ids=str)
every_tree_rule = pytest.mark.parametrize("name", TREE_RULES)
every_bias = pytest.mark.parametrize(
    ("verify", "drafting", "world"), BIASED.values(), ids=BIASED
)


@pytest.mark.sample(3)  # every rule with every draft, in one of the worlds
@every_rule
@every_draft
@pytest.mark.parametrize("seed", range(3))
def test_chains_exactly(name, drafting, seed):
    rule = RULES[name]
    assert (
        bias(
            rule.verify,
            drafting,
            World.random(seed, vocab=3, depth=3),
            rule.shares_noise,
        )
        < EXACT
    )


@pytest.mark.sample(2)
@every_rule
@pytest.mark.parametrize("policy", POLICIES)
def test_chains_that_end_by_a_policy_exactly(name, policy):
    rule, drafting = RULES[name], ended(POLICIES[policy])
    assert len(set(drafting(LONG).draft.count.tolist())) > 1, (
        "some chains must end and some must not"
    )
    assert bias(rule.verify, drafting, LONG, rule.shares_noise) < EXACT


@pytest.mark.parametrize("policy", POLICIES)
def test_match_is_exact_whatever_a_policy_is_told(policy):
    rule = RULES["match"]
    assert (
        bias(rule.verify, ended_by_its_draft_token(policy), LONG, rule.shares_noise)
        < EXACT
    )


@every_tree_rule
@every_tree
def test_trees_exactly(name, branching):
    world = World.random(sum(branching), vocab=3, depth=len(branching))
    assert (
        bias(RULES[name].verify, trees(name, *branching), world, gumbel=False) < EXACT
    )


@pytest.mark.slow
@every_tree_rule
@pytest.mark.parametrize("branching", [(2, 1, 1), (3, 1, 1)], ids=str)
def test_deep_trees_exactly(name, branching):
    world = World.random(8, vocab=3, depth=3)
    assert (
        bias(RULES[name].verify, trees(name, *branching), world, gumbel=False) < EXACT
    )


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
    rule = RULES["match"]
    assert (
        bias(
            rule.verify,
            drafting,
            World.random(0, vocab=3, depth=depth),
            rule.shares_noise,
        )
        < EXACT
    )
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
@pytest.mark.parametrize(
    "change",
    [
        lambda distribution: distribution.argmax(),
        lambda distribution: distribution.argmin(),
    ],
    ids=["from-likeliest", "to-unlikeliest"],
)
def test_chi_square_sees_the_smallest_bias(change, depth):
    distribution = plain_distribution(World.random(7, vocab=4, depth=depth))
    shifted = distribution.clone()
    shifted[change(distribution)] += VISIBLE
    shifted[distribution.argsort()[len(distribution) // 2]] -= VISIBLE
    rng = torch.Generator().manual_seed(1)
    assert (shifted > 0).all()
    assert (
        chi_square(
            distribution.multinomial(ROWS, replacement=True, generator=rng),
            distribution,
        )
        < 1
    )
    assert (
        chi_square(
            shifted.multinomial(ROWS, replacement=True, generator=rng), distribution
        )
        > 1
    )
