"""Drawn trees: their distributions, lists of both kinds, and a text's distribution."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from scipy.stats import chisquare

from foreword.draft.tree.sampled import SampledTree
from foreword.draft.tree.shapes import Shape, full_tree
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Draft, Lists, Request, SamplingParams
from foreword.verify import RULES

VOCAB = 6
QUICK = ("rejection", "traversal")
LEVEL = 1e-4
"""Probability that a test of these fixed seeds is unlucky, and always fails."""
DRAFTER = torch.tensor(
    [[2.0, 1.0, 0.5, 0.0, -1.0, -2.0], [0.0, 1.0, 2.0, -1.0, 0.5, 0.3]]
)
"""Raw logits: after the last committed token, and after any draft token."""


def request(seed: int = 3, **params: object) -> Request:
    return Request(seed, [0, 1, 2, 3], 2, SamplingParams(**params), seed=seed)


def batch(
    *requests: Request,
    lists: Lists = "distinct",
    shared: bool = False,
    trees: bool = True,
) -> Batch:
    return Batch(requests, NoiseStreams(VOCAB, shared=shared, lists=lists), trees=trees)


def grow(batch: Batch, shape: Shape) -> Draft:
    """A tree for each sequence of the batch, node by node."""
    tree = SampledTree(batch, [shape] * len(batch))
    for row in range(len(batch)):
        ready = [-1]
        while ready:
            node = ready.pop(0)
            ready += tree.draw(row, node, DRAFTER[0 if node < 0 else 1])
    return tree.draft()


ROWS = 900
"""Sequences of a sampled test: a uniform q would have p-values below LEVEL."""


@cache
def many(lists: Lists) -> tuple[Batch, Draft]:
    """A batch of ROWS sequences; each tree has two children with a child each."""
    several = batch(*(request(seed) for seed in range(ROWS)), lists=lists)
    return several, grow(several, full_tree((2, 1)))


def test_siblings_carry_distribution_that_first_was_drawn_from() -> None:
    draft = grow(batch(request(temperature=0.5)), full_tree((2, 2)))
    assert draft.parents.tolist() == [[-1, -1, 0, 0, 1, 1]]
    assert draft.count.tolist() == [6]
    assert not draft.chain
    assert draft.trees[0].probabilities == []
    distributions = (DRAFTER / 0.5).softmax(-1)[[0, 0, 1, 1, 1, 1]]
    torch.testing.assert_close(draft.probs[0], distributions)


def test_a_chain_is_drawn_draft_token_by_draft_token() -> None:
    """The definition: the largest log q + G at each depth, G the drafter's noise."""
    one = batch(*(request(seed) for seed in range(20)))
    draft = grow(one, full_tree((1, 1, 1)))
    assert draft.chain
    for row, each in enumerate(one.requests):
        tokens = draft.tokens[row].tolist()
        for depth, token in enumerate(tokens):
            distribution = DRAFTER[min(1, depth)]
            assert token == int(
                (distribution + one.draws.drafting(each, tokens[:depth])).argmax()
            )
            torch.testing.assert_close(
                draft.probs[row, depth], distribution.softmax(-1)
            )


def test_lists_are_drawn_without_replacement() -> None:
    _, draft = many("distinct")
    first, second = draft.tokens[:, :2].unbind(dim=1)
    assert not bool((first == second).any())
    q = DRAFTER[0].double().softmax(-1)
    pairs = (q[:, None] * q / (1 - q[:, None])).fill_diagonal_(0.0)
    seen = (first * VOCAB + second).bincount(minlength=VOCAB**2)[pairs.flatten() > 0]
    assert chisquare(seen.numpy(), (pairs[pairs > 0] * ROWS).numpy()).pvalue > LEVEL


def test_families_of_one_depth_are_drawn_independently() -> None:
    """The children of two nodes have one distribution, but must not be equal."""
    _, draft = many("distinct")
    left, right = draft.tokens[:, 2], draft.tokens[:, 3]
    q = DRAFTER[1].double().softmax(-1)
    seen = (left * VOCAB + right).bincount(minlength=VOCAB**2)
    expected = (q[:, None] * q).flatten() * ROWS
    assert chisquare(seen.numpy(), expected.numpy()).pvalue > LEVEL


def test_under_shared_noise_list_holds_what_target_is_nearest_to() -> None:
    one = request()
    shared = batch(one, shared=True)
    draft = grow(shared, full_tree((2, 2)))
    assert draft.probs is None
    tokens = draft.tokens[0].tolist()

    def nearest(depth: int, *path: int) -> list[int]:
        noise = shared.draws.drafting(one, path)
        return (DRAFTER[depth] + noise).topk(2).indices.tolist()

    assert tokens[:2] == nearest(0)
    assert tokens[2:4] == nearest(1, tokens[0])
    assert tokens[4:] == nearest(1, tokens[1])


def test_a_greedy_list_is_the_likeliest_and_each_is_certain() -> None:
    draft = grow(batch(request(temperature=0.0), lists="distinct"), full_tree((3,)))
    assert draft.tokens.tolist() == [[0, 1, 2]]
    assert torch.equal(draft.probs[0], torch.eye(VOCAB)[:3])


def test_where_the_distribution_allows_fewer_there_are_fewer() -> None:
    draft = grow(batch(request(top_k=2), request(4)), full_tree((3, 1)))
    assert draft.count.tolist() == [4, 6]
    assert draft.parents[0, :4].tolist() == [-1, -1, 0, 1]
    assert draft.parents[1].tolist() == [-1, -1, -1, 0, 1, 2]
    assert (draft.probs[0, :2] > 0).sum(dim=1).tolist() == [2, 2]


def test_chain_ends_by_the_next_distribution_alone() -> None:
    """Asked once for each draft token, with the distribution that it is drawn from."""
    asked: list[tuple[int, int, list[float]]] = []

    def stops(one: Request, depth: int, distribution: torch.Tensor) -> bool:
        asked.append((one.id, depth, distribution.tolist()))
        return depth == one.id - 3

    free = batch(request(4), request(5), trees=False)
    ending = replace(free, stops=stops)
    draft = grow(ending, full_tree((1, 1, 1, 1)))
    whole = grow(free, full_tree((1, 1, 1, 1)))
    assert draft.count.tolist() == [1, 2]
    assert [tree.tokens for tree in draft.trees] == [
        tree.tokens[:n] for tree, n in zip(whole.trees, (1, 2), strict=True)
    ]
    assert asked == [
        (one, depth, DRAFTER[min(1, depth)].tolist())
        for one, last in ((4, 1), (5, 2))
        for depth in range(last + 1)
    ]


@pytest.mark.parametrize("one", [{"lists": "one"}, {"trees": False}])
def test_where_chains_are_verified_a_chain_is_drawn(one: dict) -> None:
    draft = grow(batch(request(), **one), full_tree((2, 2)))
    assert draft.chain
    assert draft.count.tolist() == [2]


def test_a_processor_that_fails_costs_its_draft_tokens_alone() -> None:
    def fails(text: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if text.shape[1] > 4:
            raise RuntimeError("it knows no such text")
        return scores

    draft = grow(batch(request(processors=(fails,)), request(4)), full_tree((2, 2)))
    assert draft.count.tolist() == [2, 6]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in RULES
        if not RULES[name].shares_noise
    ],
)
def test_text_keeps_its_distribution(name: str) -> None:
    """First tokens, drafted and verified, follow the target's distribution."""
    rule, rows = RULES[name], ROWS
    one, draft = many(rule.lists)
    target = torch.tensor([0.0, 2.0, 1.0, 0.5, -1.0, 0.5])
    noise = one.draws.verifying(one.requests, draft)

    def likely(draft: Draft) -> float:
        """p-value of the first token under the target's distribution."""
        verdict = rule.verify(target.expand(rows, draft.nodes + 1, -1), draft, noise)
        draft_token = draft.tokens.gather(1, verdict.path[:, :1].clamp(min=0))[:, 0]
        seen = draft_token.where(verdict.accepted > 0, verdict.bonus).bincount(
            minlength=VOCAB
        )
        return chisquare(
            seen.numpy(), (target.double().softmax(-1) * rows).numpy()
        ).pvalue

    assert likely(draft) > LEVEL
    assert (
        likely(Draft(draft.trees, torch.full_like(draft.probs, 1 / VOCAB))) < LEVEL
    ), "any distribution would have done"
