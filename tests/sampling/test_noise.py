"""The noise is Philox's, by its counter alone, and is distributed as it says."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from foreword.native import sampling
from foreword.sampling.noise import (
    Stream,
    extend,
    extended,
    gumbel,
    gumbel_of,
    philox,
    plain_gumbel,
    seed_of,
    signed,
    start,
    uniform,
)

ONES = 0xFFFFFFFF
LEVEL = 1e-4
"""Probability that a test of these fixed seeds fails without a fault."""


PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
PI_DRAWN = (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI, (0xA4093822, 0x299F31D0), PI_DRAWN),
    ],
)
def test_philox_gives_the_published_vectors(counter, key, expected):
    words = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(map(int, words)) == expected


def drawn_by_hand(key: int, token: int, *counter: int) -> float:
    """The uniform number of a token, by the published function alone."""
    words = tuple(map(torch.tensor, (token // 4, *counter)))
    halves = (torch.tensor(key & ONES), torch.tensor(key >> 32))
    return (int(philox(words, halves)[token % 4]) + 0.5) / 2**32


def test_gumbel_is_the_counter_it_says():
    key, depth, token, turn = 2**63 + 5, 77, 1234, 9
    u = drawn_by_hand(key, token, depth, int(Stream.BONUS), turn)
    row = gumbel([key], 1999, stream=Stream.BONUS, depths=[depth], rounds=[turn])[0]
    assert row.shape == (1999,)
    assert row.dtype == torch.float32
    assert row[token].item() == pytest.approx(-math.log(-math.log(u)), abs=1e-6)
    places = dict(depths=[depth], rounds=[turn], lanes=[token])
    drawn = uniform([key], stream=Stream.BONUS, **places)
    assert drawn.dtype == torch.float64
    assert drawn.item() == u


def test_lane_is_counted_above_the_stream():
    key, depth, token, lane = 2**62 + 5, 77, 1234, 2**28 - 1
    u = drawn_by_hand(key, token, depth, Stream.DRAFT + 16 * lane, 0)
    row = gumbel([key], 1999, stream=Stream.DRAFT, depths=[depth], lanes=[lane])[0]
    assert row[token].item() == pytest.approx(-math.log(-math.log(u)), abs=1e-6)
    assert max(Stream) < 16
    assert torch.equal(gumbel([key], 1999, lanes=[0]), gumbel([key], 1999))


def test_row_does_not_depend_on_the_batch():
    keys, depths, rounds = [3, 2**64 - 1, 3, 8], [5, 0, 6, 2**31], [0, 1, 2, 3]
    together = gumbel(keys, 1001, depths=depths, rounds=rounds)
    places = dict(depths=depths, rounds=rounds, lanes=[4, 3, 2, 1])
    drawn = uniform(keys, stream=Stream.ACCEPT, **places)
    many = {name: 5 * numbers for name, numbers in places.items()}
    assert torch.equal(uniform(5 * keys, stream=Stream.ACCEPT, **many)[:4], drawn)
    for row, key in enumerate(keys):
        used = {"depths": [depths[row]], "rounds": [rounds[row]]}
        assert torch.equal(gumbel([key], 1001, **used)[0], together[row])
        assert torch.equal(gumbel([key], 77, **used)[0], together[row, :77])
        alone = uniform([key], stream=Stream.ACCEPT, lanes=[4 - row], **used)
        assert alone[0] == drawn[row]


def test_gumbel_is_distributed_as_gumbel():
    noise = gumbel(range(11, 75), 4096).flatten()
    assert noise.min() > -3.2
    assert noise.max() < 22.9
    assert stats.kstest(noise.numpy(), "gumbel_r").pvalue > LEVEL


def test_uniform_is_distributed_as_uniform_and_open():
    drawn = uniform(range(100_000), stream=Stream.ACCEPT)
    assert drawn.min() > 0
    assert drawn.max() < 1
    assert stats.kstest(drawn.numpy(), "uniform").pvalue > LEVEL


def _dependence(left, right):
    """p-value of independence: chi-square over 16 x 16 cells, of known edges."""
    cells = [
        (torch.exp(-torch.exp(-side.double())) * 16).long().flatten()
        for side in (left, right)
    ]
    counts = torch.bincount(cells[0] * 16 + cells[1], minlength=256)
    return stats.chisquare(counts.numpy()).pvalue


def test_neighbours_are_independent():
    texts = [extend(start(7), token) for token in range(64)]
    longer = [extend(key, 0) for key in texts]
    base, ones = gumbel(texts, 4096), [1] * 64
    neighbours = {
        "token": (base[:, :-1], base[:, 1:]),
        "quad": (base[:, :-4], base[:, 4:]),
        "last token of the text": (base[:-1], base[1:]),
        "length of the text": (base, gumbel(longer, 4096)),
        "seed": (base, gumbel([extend(start(8), token) for token in range(64)], 4096)),
        "answer": (
            base,
            gumbel([extend(start(seed_of(7, 1)), token) for token in range(64)], 4096),
        ),
        "raw key": (gumbel(range(64), 4096), gumbel(range(64, 128), 4096)),
        "depth": (base, gumbel(texts, 4096, depths=ones)),
        "round": (base, gumbel(texts, 4096, rounds=ones)),
        "stream": (base, gumbel(texts, 4096, stream=Stream.DRAFT)),
        "lane": (base, gumbel(texts, 4096, lanes=ones)),
    }
    unlucky = {
        name: p
        for name, pair in neighbours.items()
        if (p := _dependence(*pair)) < LEVEL
    }
    assert not unlucky


def test_the_independence_test_has_power():
    base, other = gumbel(range(64), 4096), gumbel(range(64, 128), 4096)
    mixed = torch.where(torch.arange(4096) % 50 == 0, base, other)
    assert _dependence(base, mixed) < LEVEL


def test_argmax_follows_the_distribution():
    distribution = torch.tensor(
        [0.4, 0.25, 0.15, 0.1, 0.06, 0.03, 0.009, 0.001], dtype=torch.float64
    )
    drawn = (distribution.log().float() + gumbel(range(400_000), 8)).argmax(-1)
    counts = torch.bincount(drawn, minlength=8)
    assert (
        stats.chisquare(counts.numpy(), (distribution * 400_000).numpy()).pvalue > LEVEL
    )
    biased = distribution + torch.tensor([0.005, -0.005, 0, 0, 0, 0, 0, 0])
    assert stats.chisquare(counts.numpy(), (biased * 400_000).numpy()).pvalue < LEVEL


KEYS = st.integers(0, 2**64 - 1)
TOKENS = st.integers(0, 2**40)


@given(KEYS, TOKENS, TOKENS)
def test_keys_differ_wherever_the_texts_do(key, token, other):
    if token != other:
        assert extend(key, token) != extend(key, other)
        assert extended(key, [token, other]) != extended(key, [other, token])
    assert 0 <= extend(key, token) < 2**64
    assert extend(key, token) != key


def test_keys_of_short_texts_and_small_seeds_are_all_different():
    """No seed, answer or text of few tokens is another one in disguise."""
    keys = [
        extended(start(seed_of(seed, number)), text)
        for seed in range(8)
        for number in range(4)
        for text in (
            [],
            *([a] for a in range(8)),
            *([a, b] for a in range(8) for b in range(8)),
        )
    ]
    assert len({*keys}) == len(keys) == 8 * 4 * 73
    seeds = {seed_of(seed, number) for seed in range(100) for number in range(100)}
    assert len(seeds) == 10_000
    assert seed_of(5, 0) == 5
    assert max(seeds) < 2**63


@pytest.mark.skipif(sampling.library() is None, reason="there is no C compiler")
@given(KEYS, st.lists(TOKENS, max_size=40))
def test_keys_in_c_are_those_in_python(key, tokens):
    expected = key
    for token in tokens:
        expected = extend(expected, token)
    assert sampling.extend(key, tokens) == extended(key, tokens) == expected


def test_noise_of_some_tokens_is_that_of_the_row():
    row, tokens = gumbel([9], 500)[0], [499, 0, 77, 128, 127]
    assert gumbel_of(9, tokens, 500) == row[tokens].tolist()
    assert gumbel_of(9, [], 500) == []


def in_triton(keys, depths, streams, rounds, vocab):
    words = torch.tensor([[signed(key) for key in keys], depths, streams, rounds])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return sampling.on_gpu()(words.to(device), vocab).cpu()


C = pytest.mark.skipif(sampling.library() is None, reason="there is no C compiler")
TRITON = pytest.mark.skipif(sampling.on_gpu() is None, reason="there is no Triton")


@pytest.mark.parametrize(
    "way",
    [pytest.param(sampling.gumbel, marks=C), pytest.param(in_triton, marks=TRITON)],
)
@pytest.mark.parametrize("vocab", [1, 7, 320, 8192])
def test_noise_in_c_and_on_a_gpu_is_the_noise_in_torch(way, vocab):
    keys, depths, rounds = [0, 7, 2**63 + 12345], [0, 9, 2**31], [0, 3, 1]
    lanes = [0, 5, 2**28 - 1]
    streams = [Stream.DRAFT + 16 * lane for lane in lanes]
    fast = way(keys, depths, streams, rounds, vocab)
    counted = {"depths": depths, "rounds": rounds, "lanes": lanes}
    plain = plain_gumbel(keys, vocab, stream=Stream.DRAFT, **counted)
    # Both round a double to float32; their logarithms may differ in its last bit, which
    # hardly ever shows.
    assert torch.allclose(fast, plain, rtol=2e-7, atol=1e-7)
    assert (fast != plain).float().mean() < 1e-3
