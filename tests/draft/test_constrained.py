"""Drafts under a grammar hold no token that it refuses, and the text it forces."""

import pytest
import torch

from foreword.draft import constrained
from foreword.draft.base import chosen
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Draft, DraftTree
from foreword.types.params import NODES, SamplingParams
from running import Case, drafter, engine, target, tokenizer

REGEX = "one (two|three) four five"


def sequences(text: str = ""):
    made = [
        Case((5, 6), SamplingParams(regex=REGEX, max_tokens=64)).request(target().eos),
        Case((5, 6), SamplingParams(max_tokens=64)).request(target().eos),
    ]
    made[0].tokens += ids(text)
    return made


def ids(text: str) -> list[int]:
    return list(tokenizer()(text)["input_ids"]) if text else []


def batch(several) -> Batch:
    return Batch(tuple(several), NoiseStreams(target().vocab, shared=True))


def spelled(tree: DraftTree) -> str:
    return tokenizer().decode([tree.tokens[node] for node in tree.first_chain()])


def test_refused_nodes_go_and_other_requests_keep_theirs():
    several, path = sequences(), ids("one two four")
    draft = constrained.accepted(chosen([[*path, 9, 9], [9, 9]]), several)
    assert [tree.tokens for tree in draft.trees] == [path, [9, 9]]
    assert constrained.accepted(chosen([[9], [9]]), several).trees[0].tokens == []


def test_sampled_nodes_stay_whatever_they_are():
    several, probs = sequences(), target().vocab
    tree = DraftTree([9], [-1])
    draft = Draft([tree, tree], torch.full((2, 1, probs), 1 / probs))
    assert constrained.accepted(draft, several) is draft


@pytest.mark.parametrize(
    ("before", "drafted", "whole"),
    [
        ("", "", "one"),
        ("one two", "", " four five"),
        ("", "one two", "one two four five"),
    ],
)
def test_forced_text_follows_the_first_chain(before, drafted, whole):
    several = sequences(before)
    draft = constrained.extended(chosen([ids(drafted), [9]]), batch(several))
    assert spelled(draft.trees[0]) == whole
    assert draft.trees[1].tokens == [9]
    assert draft.chain
    assert draft.trees[0].probabilities in ([], [1.0] * len(draft.trees[0]))


def test_forced_text_has_the_probability_of_the_chain_before_it():
    several = sequences()
    tree = DraftTree()
    for token in ids("one two"):
        tree.add(token, len(tree) - 1, 0.5)
    other = tree.add(ids(" three")[0], 0, 0.1)
    longer = constrained.extended(Draft([tree, DraftTree()]), batch(several)).trees[0]
    assert longer.tokens[: other + 1] == tree.tokens
    assert spelled(longer) == "one two four five"
    assert set(longer.probabilities[other + 1 :]) == {0.5}


def test_forced_text_fits_into_the_room():
    several = sequences("one two")
    several[0].params = SamplingParams(regex=REGEX, max_tokens=several[0].produced + 2)
    assert len(constrained.extended(chosen([[], []]), batch(several)).trees[0]) == 1
    full = DraftTree([ids(" four")[0]] * NODES, [-1] * NODES)
    assert (
        constrained.extended(
            Draft([full, DraftTree()]), batch(sequences("one two"))
        ).trees[0]
        is full
    )


def test_plain_decoding_drafts_no_forced_text():
    request = Case((5, 6), SamplingParams(regex=REGEX, max_tokens=32, temperature=0))
    for nodes, drafts in ((0, False), (4, True)):
        loop = engine(target(), drafter("ngram"), nodes)
        sequence = request.request(target().eos)
        loop.add(sequence)
        while not loop.idle:
            loop.step()
        assert (sequence.stats.drafted > 0) == drafts
        assert (sequence.stats.accepted > 0) == drafts


def test_forced_text_after_sampled_tokens_has_a_point_mass():
    several, vocab, path = sequences(), target().vocab, ids("one two")
    own = torch.full((2, len(path), vocab), 1 / vocab)
    tree = DraftTree(list(path), list(range(-1, len(path) - 1)))
    draft = constrained.extended(
        Draft([tree, DraftTree([9], [-1])], own), batch(several)
    )
    longer = draft.trees[0]
    assert spelled(longer) == "one two four five"
    assert draft.probs is not None
    assert torch.equal(draft.probs[:, : len(path)], own)
    for node in range(len(path), len(longer)):
        assert draft.probs[0, node].nonzero().tolist() == [[longer.tokens[node]]]
        assert draft.probs[0, node].sum() == 1
