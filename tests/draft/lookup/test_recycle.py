"""Token Recycling: what is remembered, for whom, and that it is calibrated."""

from collections.abc import Sequence

import pytest
import torch

from contract import check_form
from foreword.draft.lookup import recycle
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Draft
from markov import Markov, noisy


def chain(draft: Draft) -> list[int]:
    return draft.tokens[0, : int(draft.count[0])].tolist()


def test_the_memory_is_that_of_the_paper():
    parts = vars(recycle.Adjacency(8192)).values()
    assert sum(len(part) * part.itemsize for part in parts) < 2_000_000


def test_a_row_is_replaced_and_remembers_who_wrote_it():
    adjacency = recycle.Adjacency(10)
    assert adjacency.read(3) == ([], [])
    adjacency.write(3, [4, 5], [2.0, 1.0], writer=7)
    adjacency.write(3, [6], [0.5], writer=8)
    assert adjacency.read(3) == ([6], [0.5])
    assert (adjacency.writer(3), adjacency.writer(4)) == (8, -1)


def test_a_text_is_put_before_what_was_known():
    adjacency = recycle.Adjacency(20)
    adjacency.write(
        1,
        list(range(2, 2 + recycle.SUCCESSORS)),
        [float(-n) for n in range(recycle.SUCCESSORS)],
        writer=1,
    )
    adjacency.copy([1, 15, 1, 4, 9], writer=2)
    assert adjacency.read(1)[0] == [15, 2, 3, 4, 5, 6, 7, 8]
    assert adjacency.read(15) == ([1], [0.0])
    assert adjacency.read(9) == ([], [])


def test_draft_tokens_follow_what_the_target_found_likely():
    """A cycle with a false alley: 0 → … → 7 → 0; each token's twin (+ 8) is second."""
    table = torch.full((16, 16), -9.0)
    for token in range(16):
        table[token, (token + 1) % 8], table[token, (token + 1) % 8 + 8] = 3.0, 2.0
    target, drafter = Markov(table), recycle.RecyclingDrafter()
    one = target.request([0], temperature=0)
    for _ in range(12):
        target.round(drafter, [one], 6)
    last = one.tokens[-1]
    assert target.round(drafter, [one], 6)[0] == [(last + n) % 8 for n in range(1, 8)]
    # A draft token that was never kept was scored too, so it has successors.
    assert drafter._memories[""].adjacency.read(9)[0][:2] == [2, 10]


def test_a_chain_is_given_where_trees_are_not_verified():
    target, drafter = Markov(noisy(32, 3.0), trees=False), recycle.RecyclingDrafter()
    one = target.request([0], temperature=0)
    for _ in range(60):
        target.round(drafter, [one], 4)
    assert all(draft.chain for draft in target.drafts)
    assert max(int(draft.count[0]) for draft in target.drafts) == 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_probabilities_are_those_of_the_target_text(temperature):
    """Never rising, best first; the accepted are as many as the probabilities say."""
    target, drafter = Markov(noisy(24, 2.0)), recycle.RecyclingDrafter()
    one = target.request([0], temperature=temperature)
    promised = kept = 0.0
    for turn in range(200):
        said = target.round(drafter, [one], 12)[0]
        draft = target.drafts[-1]
        check_form(draft, [12], 24)
        probabilities = draft.trees[0].probabilities
        assert probabilities == sorted(probabilities, reverse=True)
        promised = promised + (turn > 60) * sum(probabilities)
        kept = kept + (turn > 60) * (len(said) - 1)
    assert kept > 100
    assert promised == pytest.approx(kept, rel=0.15)


class Blind(recycle.RecyclingDrafter):
    """Drafts what is likely, not what will be drawn."""

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        return super().propose(
            Batch(batch.requests, NoiseStreams(24, shared=False), batch.trees), nodes
        )


def test_known_noise_makes_draft_tokens_accepted():
    target = Markov(noisy(24))
    lengths = []
    for drafter in (recycle.RecyclingDrafter(), Blind()):
        one = target.request([0], 3)
        for _ in range(150):
            target.round(drafter, [one], 4)
        lengths.append(len(one.tokens))
    assert lengths[0] > 1.15 * lengths[1]


def test_a_floor_leaves_out_what_is_not_worth_its_scoring():
    target, drafter = Markov(noisy(24)), recycle.RecyclingDrafter()
    one = target.request([0])
    for _ in range(100):
        target.round(drafter, [one], 8)
    draft = drafter.propose(Batch((one,), target.draws, floor=0.1), [16])
    all_of_them = drafter.propose(target.batch(one), [16])
    assert 0 < int(draft.count[0]) < int(all_of_them.count[0])
    least, least_of_all = (
        min(one.trees[0].probabilities) for one in (draft, all_of_them)
    )
    assert least > 0.1 > least_of_all


def test_nothing_is_drafted_after_the_end_of_text():
    target, drafter = Markov(noisy(12, 2.0)), recycle.RecyclingDrafter()
    one = target.request([0], temperature=0)
    for _ in range(30):
        target.round(drafter, [one], 8)
    one.eos = frozenset(range(12))
    draft = drafter.propose(target.batch(one), [8])
    assert int(draft.count[0]) > 0
    assert set(draft.parents[0].tolist()) == {-1}


def test_a_tenant_learns_nothing_from_another():
    target = Markov(noisy(32, 3.0))
    drafter = recycle.RecyclingDrafter()
    fresh = recycle.RecyclingDrafter()
    theirs = target.request([0], 1, temperature=0, tenant="theirs")
    for _ in range(40):
        target.round(drafter, [theirs], 8)
    ours, alone = (
        target.request(theirs.tokens[:3], 2, temperature=0, tenant="ours")
        for _ in range(2)
    )
    for _ in range(3):
        said = [
            target.round(one, [asker], 8)[0]
            for one, asker in ((drafter, ours), (fresh, alone))
        ]
        assert said[0] == said[1]
        knows, learnt, started = (
            chain(one.propose(target.batch(asker), [8]))
            for one, asker in ((drafter, theirs), (drafter, ours), (fresh, alone))
        )
        assert knows
        assert learnt == started


def test_what_one_sequence_saw_serves_the_next_of_its_tenant():
    target, drafter = Markov(noisy(32, 3.0)), recycle.RecyclingDrafter()
    first = target.request([0], 1, temperature=0)
    for _ in range(40):
        target.round(drafter, [first], 8)
    drafter.release(first)
    said = [
        target.round(one, [target.request([0], 2, temperature=0)], 8)[0]
        for one in (drafter, recycle.RecyclingDrafter())
    ]
    assert said == [first.tokens[1 : 1 + len(said[0])], first.tokens[1:2]]
    assert len(said[0]) > 1


def test_tenants_that_were_not_served_for_longest_are_forgotten():
    target, drafter = Markov(noisy(8)), recycle.RecyclingDrafter()
    crowd = [
        target.request([0], turn, temperature=0, tenant=str(turn))
        for turn in range(recycle.TENANTS + 2)
    ]
    target.round(drafter, crowd, 0)
    assert list(drafter._memories) == [
        str(turn) for turn in range(2, recycle.TENANTS + 2)
    ]


def test_bfloat16_logits_are_learnt_from():
    target, drafter = Markov(noisy(32, 3.0).bfloat16()), recycle.RecyclingDrafter()
    one = target.request([0])
    lengths = [len(target.round(drafter, [one], 8)[0]) for _ in range(100)]
    assert sum(lengths) > 150


def test_probability_is_learnt_and_starts_at_what_share_says():
    calibration = recycle.Calibration()
    assert (
        calibration.probability(0.1, 2, fresh=True)
        < calibration.probability(0.5, 0, fresh=True)
        < calibration.probability(0.9, 0, False)
    )
    before = calibration.probability(0.9, 0, fresh=False)
    for turn in range(200):
        calibration.learn(0.9, 0, fresh=True, accepted=turn % 4 == 0)
    assert calibration.probability(0.9, 0, fresh=True) == pytest.approx(0.25, abs=0.03)
    assert calibration.probability(0.9, 0, fresh=False) == before


def test_source_of_an_encoder_decoder_gives_successors():
    target, drafter = Markov(noisy(20)), recycle.RecyclingDrafter()
    one = target.request([0], temperature=0)
    one.source = (13, 14, 15)
    target.round(drafter, [one], 4)
    assert drafter._memories[""].adjacency.read(13)[0] == [14]
