"""Drafts as lists and as tensors: each is made of the other, and they are equal."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foreword.draft.base import chosen, first_chain
from foreword.types import Draft, DraftTree, Verdict

Node = tuple[int, int]
"""A token, and which of the draft tokens before it, or none of them, is its parent."""
draft_tokens = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6)


def grown(pairs: list[Node]) -> DraftTree:
    tree, probabilities = DraftTree(), [1.0]
    for node, (token, choice) in enumerate(pairs):
        parent = choice % (node + 1) - 1
        probabilities.append(probabilities[parent + 1] * 0.5)
        tree.add(token, parent, probabilities[-1])
    return tree


def again(draft: Draft) -> Draft:
    """The draft with nothing left of its lists."""
    tensors = (draft.tokens, draft.parents, draft.count, draft.probs)
    return Draft.padded(*tensors, chain=draft.chain)


@given(st.lists(draft_tokens, min_size=1, max_size=4))
def test_lists_become_tensors_and_lists_again(forest: list[list[Node]]) -> None:
    rows = [grown(pairs) for pairs in forest]
    draft = Draft(rows)
    budget = max(map(len, rows))
    assert draft.nodes == budget
    assert draft.tokens.shape == draft.parents.shape == (len(rows), budget)
    for row, tree in enumerate(rows):
        beyond = [0] * (budget - len(tree))
        assert draft.tokens[row].tolist() == tree.tokens + beyond
    plain = tuple(DraftTree(tree.tokens, tree.parents) for tree in rows)
    assert again(draft).trees == plain
    assert again(draft).nodes == draft.nodes
    assert draft.chain == all(
        tree.parents == list(range(-1, len(tree) - 1)) for tree in rows
    )


@given(draft_tokens)
def test_depths_and_paths_are_those_of_the_parents(pairs: list[Node]) -> None:
    tree = grown(pairs)
    assert [len(path) for path in tree.paths] == tree.depths
    for node, parent in enumerate(tree.parents):
        assert tree.paths[node + 1] == [*tree.paths[parent + 1], tree.tokens[node]]


@given(st.lists(draft_tokens, min_size=1, max_size=3))
def test_first_chain_keeps_its_distributions(forest: list[list[Node]]) -> None:
    plain = [DraftTree(tree.tokens, tree.parents) for tree in map(grown, forest)]
    distributions = torch.rand(len(plain), max(map(len, plain)), 5)
    chain = first_chain(Draft(plain, distributions))
    assert chain.chain
    assert chain.probs.shape == (len(plain), chain.nodes, 5)
    for row, tree in enumerate(plain):
        nodes = tree.first_chain()
        assert chain.trees[row] == tree.as_chain()
        assert torch.equal(chain.probs[row, : len(nodes)], distributions[row, nodes])


@given(
    st.lists(draft_tokens, min_size=1, max_size=3),
    st.lists(st.integers(0, 4), min_size=3, max_size=3),
)
def test_draft_within_a_depth_keeps_all_that_are_no_deeper(
    forest: list[list[Node]], most: list[int]
) -> None:
    trees = [DraftTree(tree.tokens, tree.parents) for tree in map(grown, forest)]
    distributions = torch.rand(len(trees), max(map(len, trees)), 5)
    cut = Draft(trees, distributions).within(most[: len(trees)])
    for row, (tree, deep) in enumerate(zip(trees, most, strict=False)):
        kept = [node for node in range(len(tree)) if tree.depths[node + 1] <= deep]
        assert cut.trees[row].paths[1:] == [tree.paths[node + 1] for node in kept]
        assert torch.equal(cut.probs[row, : len(kept)], distributions[row, kept])
    assert cut.nodes == cut.probs.shape[1]


def test_probabilities_are_known_of_all_draft_tokens_or_none():
    assert Draft([DraftTree([5], [-1], [0.5]), DraftTree()]).weighed
    half = Draft([DraftTree([5], [-1], [0.5]), DraftTree([6], [-1])])
    assert not half.weighed
    assert again(chosen([[5, 6]])).trees == (DraftTree([5, 6], [-1, 0]),)


def test_copy_has_the_draft_tokens_in_use_on_another_device():
    wide = Draft.padded(
        torch.tensor([[5, 6, 0]]),
        torch.tensor([[-1, 0, 1]]),
        torch.tensor([2]),
        torch.rand(1, 3, 9),
    )
    there = wide.copy(torch.device("meta"))
    assert there.trees == (DraftTree([5, 6], [-1, 0]),)
    assert {
        there.tokens.device.type,
        there.parents.device.type,
        there.count.device.type,
    } == {"meta"}
    assert (there.probs.shape, there.probs.device.type) == ((1, 2, 9), "meta")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("parents", "count", "said"),
    [
        (torch.tensor([[-1]]), [2], "one shape"),
        (torch.tensor([[-1, 0]]), [2, 2], "one shape"),
    ]
    + [(torch.tensor([[-1, 0]]), [wrong], "cannot hold") for wrong in (3, -1)],
)
def test_tensors_that_do_not_fit_together_are_refused(parents, count, said):
    with pytest.raises(ValueError, match=said):
        _ = Draft.padded(torch.tensor([[5, 6]]), parents, torch.tensor(count)).trees


def test_a_verdict_says_the_same_as_lists_and_as_tensors():
    draft = Draft(
        [DraftTree([5, 6, 7], [-1, -1, 1]), DraftTree([8], [-1]), DraftTree()]
    )
    lists = Verdict([[1, 2], [], []], [9, 4, 3], draft.nodes)
    assert lists.path.tolist() == [[1, 2, -1], [-1] * 3, [-1] * 3]
    assert (lists.accepted.tolist(), lists.bonus.tolist()) == ([2, 0, 0], [9, 4, 3])
    tensors = Verdict.padded(lists.path, lists.accepted, lists.bonus)
    assert (tensors.kept, tensors.added) == (lists.kept, lists.added)
    assert lists.said(draft) == tensors.said(draft) == [[6, 7, 9], [4], [3]]
