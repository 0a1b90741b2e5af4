"""The noise is Philox's, depends on its counter alone, and is distributed as
it says.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from foreword.native import sampling
from foreword.sampling.noise import (
    GumbelBuffer,
    Stream,
    gumbel,
    philox,
    plain_gumbel,
    uniform,
)

ONES = 0xFFFFFFFF
LEVEL = 1e-4
"""Seeds are fixed, so a test either always passes or always fails; this is its probability
of failing without a fault.
"""


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_vectors(counter, key, expected):
    words = philox(
        tuple(torch.tensor(word) for word in counter),
        tuple(torch.tensor(word) for word in key),
    )
    assert tuple(int(word) for word in words) == expected


def test_gumbel_is_the_counter_it_says():
    seed, position, token, turn = 2**62 + 5, 77, 1234, 9
    counter = tuple(
        torch.tensor(word) for word in (token // 4, position, int(Stream.BONUS), turn)
    )
    word = philox(counter, (torch.tensor(seed & ONES), torch.tensor(seed >> 32)))[
        token % 4
    ]
    u = (int(word) + 0.5) / 2**32
    row = gumbel([seed], [position], 1999, stream=Stream.BONUS, rounds=[turn])[0]
    assert row.shape == (1999,)
    assert row.dtype == torch.float32
    assert row[token].item() == pytest.approx(-math.log(-math.log(u)), abs=1e-6)
    drawn = uniform(
        [seed], [position], stream=Stream.BONUS, rounds=[turn], lanes=[token]
    )
    assert drawn.dtype == torch.float64
    assert drawn.item() == u


def test_lane_is_counted_above_the_stream():
    seed, position, token, lane = 2**62 + 5, 77, 1234, 2**28 - 1
    counter = tuple(
        torch.tensor(word)
        for word in (token // 4, position, Stream.DRAFT + 16 * lane, 0)
    )
    word = philox(counter, (torch.tensor(seed & ONES), torch.tensor(seed >> 32)))[
        token % 4
    ]
    row = gumbel([seed], [position], 1999, stream=Stream.DRAFT, lanes=[lane])[0]
    assert row[token].item() == pytest.approx(
        -math.log(-math.log((int(word) + 0.5) / 2**32)), abs=1e-6
    )
    assert max(Stream) < 16
    assert torch.equal(
        gumbel([seed], [position], 1999, lanes=[0]), gumbel([seed], [position], 1999)
    )


def test_row_does_not_depend_on_the_batch():
    seeds, positions, rounds = [3, 2**63 - 1, 3, 8], [5, 0, 6, 2**31], [0, 1, 2, 3]
    together = gumbel(seeds, positions, 1001, rounds=rounds)
    drawn = uniform(
        seeds, positions, stream=Stream.ACCEPT, rounds=rounds, lanes=[4, 3, 2, 1]
    )
    for row, (seed, position, turn) in enumerate(
        zip(seeds, positions, rounds, strict=True)
    ):
        assert torch.equal(
            gumbel([seed], [position], 1001, rounds=[turn])[0], together[row]
        )
        assert torch.equal(
            gumbel([seed], [position], 77, rounds=[turn])[0], together[row, :77]
        )
        lane = [4 - row]
        assert (
            uniform(
                [seed], [position], stream=Stream.ACCEPT, rounds=[turn], lanes=lane
            )[0]
            == drawn[row]
        )


def test_gumbel_is_distributed_as_gumbel():
    noise = gumbel([11] * 64, range(64), 4096).flatten()
    assert noise.min() > -3.2
    assert noise.max() < 22.9
    assert stats.kstest(noise.numpy(), "gumbel_r").pvalue > LEVEL


def test_uniform_is_distributed_as_uniform_and_open():
    drawn = uniform(range(100_000), [1] * 100_000, stream=Stream.ACCEPT)
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
    base = gumbel([7] * 64, range(64), 4096)
    one = [1] * 64
    neighbours = {
        "token": (base[:, :-1], base[:, 1:]),
        "quad": (base[:, :-4], base[:, 4:]),
        "position": (base[:-1], base[1:]),
        "seed": (base, gumbel([8] * 64, range(64), 4096)),
        "high seed": (base, gumbel([7 + 2**32] * 64, range(64), 4096)),
        "round": (base, gumbel([7] * 64, range(64), 4096, rounds=one)),
        "stream": (base, gumbel([7] * 64, range(64), 4096, stream=Stream.DRAFT)),
        "lane": (base, gumbel([7] * 64, range(64), 4096, lanes=one)),
    }
    unlucky = {
        name: p
        for name, pair in neighbours.items()
        if (p := _dependence(*pair)) < LEVEL
    }
    assert not unlucky


def test_the_independence_test_has_power():
    base, other = gumbel([7] * 64, range(64), 4096), gumbel([8] * 64, range(64), 4096)
    mixed = torch.where(torch.arange(4096) % 50 == 0, base, other)
    assert _dependence(base, mixed) < LEVEL


def test_argmax_follows_the_distribution():
    distribution = torch.tensor(
        [0.4, 0.25, 0.15, 0.1, 0.06, 0.03, 0.009, 0.001], dtype=torch.float64
    )
    drawn = (
        distribution.log().float() + gumbel([5] * 200_000, range(200_000), 8)
    ).argmax(-1)
    counts = torch.bincount(drawn, minlength=8)
    assert (
        stats.chisquare(counts.numpy(), (distribution * 200_000).numpy()).pvalue > LEVEL
    )
    biased = distribution + torch.tensor([0.005, -0.005, 0, 0, 0, 0, 0, 0])
    assert stats.chisquare(counts.numpy(), (biased * 200_000).numpy()).pvalue < LEVEL


VOCAB = 40_001
"""Wide enough for the shortest block, so that short requests cross its edges; odd, so
that the last quad is cut.
"""

reads = st.lists(
    st.tuples(st.sampled_from([1, 2]), st.integers(0, 30), st.integers(1, 14)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=20)  # of 40 rows each
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=12)
)
def test_buffer_equals_gumbel_in_any_order(requests):
    tape = GumbelBuffer(5, VOCAB)
    for start, count in requests:
        expected = gumbel([5] * count, range(start, start + count), VOCAB)
        assert torch.equal(tape.rows(start, count), expected)


def test_buffer_makes_each_row_once_and_keeps_few():
    tape = GumbelBuffer(5, 8192)
    first = tape.rows(100, 3).data_ptr()
    assert tape.rows(101, 2).data_ptr() == first + 8192 * 4
    held = tape._rows.shape[0]
    for start in range(100, 400, 3):
        assert torch.equal(tape.rows(start, 5)[-1:], gumbel([5], [start + 4], 8192))
    assert tape._rows.shape[0] == held


@pytest.mark.skipif(sampling.library() is None, reason="there is no C compiler")
@pytest.mark.parametrize("vocab", [1, 7, 320, 8192])
def test_noise_in_c_is_the_noise_in_torch(vocab):
    seeds, positions, rounds = [0, 7, 2**62 + 12345], [0, 9, 2**31], [0, 3, 1]
    lanes = [0, 5, 2**28 - 1]
    streams = [Stream.DRAFT + 16 * lane for lane in lanes]
    fast = sampling.gumbel(seeds, positions, streams, rounds, vocab)
    plain = plain_gumbel(
        seeds, positions, vocab, stream=Stream.DRAFT, rounds=rounds, lanes=lanes
    )
    # Both round a double to float32; their logarithms may differ in its last bit, which
    # hardly ever shows.
    assert torch.allclose(fast, plain, rtol=2e-7, atol=1e-7)
    assert (fast != plain).float().mean() < 1e-3
