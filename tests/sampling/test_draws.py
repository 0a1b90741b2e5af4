"""Who draws with which noise: shared under `match`, independent streams under every
other rule.
"""

import pytest
import torch

from foreword.draft.base import chosen
from foreword.sampling.noise import Stream, gumbel
from foreword.sampling.streams import NoiseStreams
from foreword.types import Draft, Request, SamplingParams

VOCAB = 50


def sequence(seed: int = 3, length: int = 4, **params: object) -> Request:
    return Request(1, list(range(length)), 2, SamplingParams(**params), seed=seed)


def draws(*, shared: bool) -> NoiseStreams:
    return NoiseStreams(VOCAB, shared=shared)


def test_drafter_and_target_share_noise():
    one, keyed = sequence(), draws(shared=True)
    noise = keyed.verifying((one,), chosen([[5, 6]]), [[0, 1, 2]])
    assert not keyed.wants_probs
    for depth in range(3):
        assert torch.equal(keyed.drafting(one, depth), noise.gumbel[0, depth])
        assert torch.equal(
            keyed.drafting(one, depth), gumbel([3], [4 + depth], VOCAB)[0]
        )


def test_noise_belongs_to_a_position_of_the_text():
    tree = Draft.padded(
        torch.tensor([[5, 6, 7]]),
        torch.tensor([[-1, -1, 1]]),
        torch.tensor([3]),
        chain=False,
    )
    ahead = (
        draws(shared=True)
        .verifying((sequence(length=4),), tree, [[0, 1, 1, 2]])
        .gumbel[0]
    )
    assert torch.equal(ahead[1], ahead[2])
    later = (
        draws(shared=True)
        .verifying((sequence(length=6),), chosen([[]]), [[0]])
        .gumbel[0]
    )
    assert torch.equal(ahead[3], later[0])


def test_batch_changes_nothing():
    keyed, one, other, greedy = (
        draws(shared=True),
        sequence(),
        sequence(seed=9, length=7),
        sequence(temperature=0.0),
    )
    alone = keyed.verifying((one,), chosen([[5]]), [[0, 1]]).gumbel[0]
    together = keyed.verifying(
        (other, greedy, one), chosen([[1], [2], [5]]), [[0, 1]] * 3
    ).gumbel
    assert torch.equal(together[2], alone)
    assert not together[1].any(), "a greedy sequence in a mixed batch gets no noise"


def test_a_greedy_sequence_needs_no_noise():
    for shared in (True, False):
        assert draws(shared=shared).drafting(sequence(temperature=0.0), 0) is None
    assert (
        draws(shared=True)
        .verifying((sequence(temperature=0.0),), chosen([[5]]), [[0, 1]])
        .gumbel
        is None
    )


def test_unshared_noise_is_independent_of_the_targets():
    keyed, one = draws(shared=False), sequence()
    assert keyed.wants_probs
    drafted = torch.stack(
        [keyed.drafting(one, depth) for depth in range(200)]
    ).flatten()
    shared = gumbel([3] * 200, range(4, 204), VOCAB).flatten()
    assert (
        abs(torch.corrcoef(torch.stack([drafted, shared]))[0, 1])
        < 4 / len(drafted) ** 0.5
    )
    noise = keyed.verifying((one,), chosen([[5, 6]]), [[0, 1, 2]])
    assert noise.gumbel is None
    assert not torch.equal(noise.accept, noise.bonus)


@pytest.mark.parametrize("shared", [True, False])
def test_lanes_are_independent_unless_noise_is_shared(shared):
    keyed, one = NoiseStreams(5000, shared=shared, lists="independent"), sequence()
    first, second = keyed.drafting(one, 1), keyed.drafting(one, 1, lane=1)
    assert torch.equal(keyed.drafting(one, 1, lane=0), first)
    assert torch.equal(first, second) == shared
    if not shared:
        assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 4 / 5000**0.5
        assert torch.equal(
            second,
            gumbel([3], [5], 5000, stream=Stream.DRAFT, rounds=[0], lanes=[1])[0],
        )


def test_a_drafter_is_told_how_the_rule_wants_its_lists():
    assert draws(shared=False).lists == "one"
    assert NoiseStreams(VOCAB, shared=False, lists="distinct").lists == "distinct"


@pytest.mark.parametrize("shared", [True, False])
def test_round_has_new_noise_unless_shared(shared):
    keyed, one = draws(shared=shared), sequence()
    before = keyed.drafting(one, 1)
    one.rounds += 1
    assert torch.equal(keyed.drafting(one, 1), before) == shared


def test_forgetting_changes_no_number():
    keyed, one = draws(shared=True), sequence()
    before = keyed.drafting(one, 0).clone()
    keyed.forget(one)
    assert torch.equal(keyed.drafting(one, 0), before)
