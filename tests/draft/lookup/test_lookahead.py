"""Lookahead decoding: the latest pool, a window on the text, both in one tree."""

import pytest
import torch

from contract import check_form
from foreword.draft.lookup.lookahead import NGRAMS_PER_TOKEN, LookaheadDrafter, Pool
from foreword.types import Draft, Scores, Verdict
from markov import Markov, noisy


def branches(draft: Draft) -> list[list[int]]:
    """Every path of the only row, from the root on."""
    return draft.trees[0].paths[1:]


def test_the_pool_gives_the_latest_first_and_forgets_the_oldest():
    pool = Pool()
    for rest in range(NGRAMS_PER_TOKEN + 2):
        pool.add([1, rest, 0])
    pool.add([1, 4, 0])
    assert [rest for rest, _ in pool.after(1)] == [4, 9, 8, 7, 6, 5, 3, 2]
    assert pool.after(2) == []


def test_pool_continues_from_the_last_one_or_two_tokens():
    pool = Pool()
    for gram in ([1, 2, 3], [2, 3, 4], [3, 4, 2], [3, 9, 9]):
        pool.add(gram)
    assert pool.continued([7, 1], 7) == [2, 3, 4, 2, 3, 4, 2]
    assert pool.continued([3], 3) == [9, 9]
    assert pool.continued([8, 2], 2) == [3, 4]
    assert pool.continued([2, 8], 2) == []


def test_what_followed_last_token_is_drafted_and_rest_is_window():
    drafter, target = LookaheadDrafter(), Markov(noisy(20))
    draft = drafter.propose(target.batch(target.request([1, 2, 3, 1, 4, 5, 1])), [16])
    check_form(draft, [16], 20)
    found = branches(draft)
    assert [4, 5] in found
    assert [2, 3] in found
    assert found.index([4, 5]) < found.index([2, 3]), "the latest comes first"
    assert len({tuple(path) for path in found}) == len(found), (
        "a twin is never followed"
    )
    assert draft.trees[0].probabilities == [], (
        "a width that cuts unlikely draft tokens would cut the window"
    )


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8, 16, 64])
def test_sizes_adapt_to_what_is_asked(nodes):
    drafter, target = LookaheadDrafter(), Markov(noisy(40))
    one = target.request([1, 2, 3, 1, 4, 5, 1])
    for _ in range(20):
        target.round(drafter, [one], nodes)
        check_form(target.drafts[-1], [nodes], 40)
    assert max(int(draft.count[0]) for draft in target.drafts) == nodes


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_grams_of_the_window_end_with_the_targets_token(temperature):
    """The likeliest one: noise is known only of the text itself."""
    drafter, target = LookaheadDrafter(), Markov(noisy(40))
    one = target.request([1, 2, 3, 4, 5, 6, 7], 5, temperature=temperature)
    checked = 0
    for _ in range(30):
        place = len(one.tokens) - 1
        target.round(drafter, [one], 16)
        window = drafter._texts[5].window
        assert window.start == place + 1
        for column in window.columns:
            assert column[-1] == int(target.table[column[-2]].argmax())
            checked += 1
    assert checked > 100


def rounds_of(
    drafter: LookaheadDrafter, target: Markov, temperature: float, rounds: int = 150
) -> float:
    one = target.request([0, 1, 2, 3], 3, temperature=temperature)
    for _ in range(rounds):
        target.round(drafter, [one], 16)
    return (len(one.tokens) - 4) / rounds


def test_the_window_finds_text():
    target = Markov(noisy(200))  # so many successors that no text repeats itself
    assert rounds_of(LookaheadDrafter(), target, 0.0) > 2
    assert rounds_of(LookaheadDrafter(), Markov(noisy(24, 4.0)), 1.0) > 2


@pytest.mark.parametrize("more", [0, 1, 3])
def test_place_keeps_its_draft_tokens_however_far_text_has_come(more):
    drafter, target = LookaheadDrafter(), Markov(noisy(200))
    one = target.request([1, 2, 3, 4, 5, 6, 7])
    for _ in range(5):
        target.round(drafter, [one], 16)
    window = drafter._texts[0].window
    one.tokens += [50, 51, 52][:more]
    gone = len(one.tokens) - 1 - window.start
    assert gone < len(window.columns)
    chain = [column[0] for column in window.columns[gone + 1 :]]
    found = branches(drafter.propose(target.batch(one), [16]))
    assert window.columns[gone][1:] in found
    for place in range(len(chain)):
        assert [*chain[: place + 1], *window.columns[gone + 1 + place][1:]] in found


def test_where_trees_are_not_verified_the_pool_is_copied():
    drafter, target = LookaheadDrafter(), Markov(noisy(20), trees=False)
    one = target.request([1, 2, 3, 1, 4, 5, 1])
    draft = drafter.propose(target.batch(one), [8])
    assert draft.chain
    assert branches(draft)[-1] == [4, 5, 1, 4, 5, 1, 4, 5]


def test_draft_tokens_of_its_own_are_needed_to_learn():
    """Rounds without a call, or with other draft tokens, leave the window as it was."""
    drafter, target = LookaheadDrafter(), Markov(noisy(40))
    one = target.request([1, 2, 3, 4, 5, 6, 7])
    target.round(drafter, [one], 16)
    window = drafter._texts[0].window
    for nodes in (0, 0):
        target.round(drafter, [one], nodes)
        assert drafter._texts[0].window is window
    drafter.propose(target.batch(one), [16])
    empty = torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    nothing = Draft.padded(empty[0], empty[0], empty[1])
    drafter.observe(
        target.batch(one),
        nothing,
        Verdict.padded(empty[0], empty[1], empty[1]),
        Scores((target.table[one.tokens[-1:]],)),
    )
    assert drafter._texts[0].window is window
    place = len(one.tokens)
    target.round(drafter, [one], 16)
    assert drafter._texts[0].window.start == place, "it is over the text again"


def test_nothing_is_copied_after_the_end_of_text():
    drafter, target = LookaheadDrafter(), Markov(noisy(20), trees=False)
    one = target.request([1, 2, 3, 1, 4, 5, 1])
    one.eos = frozenset({4})
    assert branches(drafter.propose(target.batch(one), [8])) == [[4]]


def test_bfloat16_logits_are_learnt_from():
    assert rounds_of(LookaheadDrafter(), Markov(noisy(200).bfloat16()), 0.0) > 1.3


def test_the_source_of_an_encoder_decoder_is_copied_from_too():
    target, drafter = Markov(noisy(20), trees=False), LookaheadDrafter()
    one = target.request([0, 7, 5], temperature=0)
    one.source = (4, 5, 6, 8, 2)
    draft = drafter.propose(target.batch(one), [3])
    assert draft.tokens[0].tolist() == [6, 8, 2]
