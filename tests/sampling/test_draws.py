"""Who draws with which noise: shared under `match`, else independent streams."""

import pytest
import torch

from foreword.draft.base import chosen
from foreword.sampling.noise import Stream, extended, gumbel, start
from foreword.sampling.streams import NoiseStreams
from foreword.types import Request, SamplingParams, Source

VOCAB = 50


def request(
    seed: int = 3, length: int = 4, prompt: int = 2, **params: object
) -> Request:
    return Request(1, list(range(length)), prompt, SamplingParams(**params), seed=seed)


def draws(*, shared: bool) -> NoiseStreams:
    return NoiseStreams(VOCAB, shared=shared)


@pytest.mark.parametrize("prompt", [1, 2, 4])
def test_noise_belongs_to_the_seed_and_the_tokens_before(prompt):
    """Wherever the prompt ends, and whichever tokens are only drafted so far."""
    one, keyed = request(prompt=prompt), draws(shared=True)
    assert not keyed.wants_probs
    for path in ([], [5], [5, 6]):
        key = extended(start(3), [*range(4), *path])
        drafted = keyed.drafting(one, path)
        assert torch.equal(drafted, gumbel([key], VOCAB)[0])
        assert keyed.noise_of(one, path, [7, 3]) == drafted[[7, 3]].tolist()
        later = request(prompt=prompt)
        later.tokens += path
        assert keyed.key(later) == key


def test_keys_follow_a_text_that_grows():
    one, keyed = request(), draws(shared=True)
    before = keyed.key(one)
    one.tokens += [8, 9]
    assert keyed.written(one, 2) == [before, extended(before, [8])]
    assert keyed.written(one, 0) == []
    fresh = request()
    fresh.tokens += [8, 9]
    assert keyed.key(fresh) == keyed.key(one) == extended(before, [8, 9])


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 4},
        {"source": Source([1])},
        {"material": (1,)},
        {"tokens": [9, 1, 2, 3]},
    ],
)
def test_anything_before_a_token_changes_its_noise(other):
    one, changed = request(), request()
    for name, value in other.items():
        setattr(changed, name, value)
    keyed = draws(shared=True)
    assert keyed.key(one) != keyed.key(changed)


def test_a_greedy_sequence_needs_no_noise():
    greedy = request(temperature=0.0)
    for shared in (True, False):
        assert draws(shared=shared).drafting(greedy) is None
    keyed = draws(shared=True)
    assert keyed.key(greedy) is keyed.written(greedy, 1) is None
    assert keyed.noise_of(greedy, [], [1]) is None


def test_unshared_noise_is_independent_of_the_targets():
    keyed, one = draws(shared=False), request()
    assert keyed.wants_probs
    paths = [[5] * depth for depth in range(200)]
    drafted = torch.stack([keyed.drafting(one, path) for path in paths]).flatten()
    shared = torch.stack(
        [draws(shared=True).drafting(one, path) for path in paths]
    ).flatten()
    correlation = torch.corrcoef(torch.stack([drafted, shared]))[0, 1]
    assert abs(correlation) < 4 / len(drafted) ** 0.5
    noise = keyed.verifying((one,), chosen([[5, 6]]))
    assert noise.gumbel is None
    assert not torch.equal(noise.accept, noise.bonus)


@pytest.mark.parametrize("shared", [True, False])
def test_lanes_are_independent_unless_noise_is_shared(shared):
    keyed, one = NoiseStreams(5000, shared=shared, lists="distinct"), request()
    first, second = keyed.drafting(one, [5]), keyed.drafting(one, [5], lane=1)
    assert torch.equal(keyed.drafting(one, [5], lane=0), first)
    assert torch.equal(first, second) == shared
    if not shared:
        assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1]) < 4 / 5000**0.5
        used = {"depths": [1], "rounds": [0], "lanes": [1]}
        key = extended(start(3), range(4))
        assert torch.equal(second, gumbel([key], 5000, stream=Stream.DRAFT, **used)[0])


def test_a_drafter_is_told_how_the_rule_wants_its_lists():
    assert draws(shared=False).lists == "one"
    assert NoiseStreams(VOCAB, shared=False, lists="distinct").lists == "distinct"


@pytest.mark.parametrize("shared", [True, False])
def test_round_has_new_noise_unless_shared(shared):
    keyed, one = draws(shared=shared), request()
    before = keyed.drafting(one, [5])
    one.rounds += 1
    assert torch.equal(keyed.drafting(one, [5]), before) == shared
