"""Counter-based noise: every number is a function of a key, a token, and what counts
apart the uses of one key: depth, stream, lane and round.

A key is a hash of a seed and a text (`start`, `extend`). The same integers come out on
every device and in every batch.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.native import sampling

Word = TypeVar("Word", int, Tensor)
Words = tuple[Word, Word, Word, Word]

_MASK, _MASK_64 = 0xFFFFFFFF, 2**64 - 1
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_FEW = 16
"""Tokens or numbers. Up to this many, Python is faster than calls of C or torch."""
_STREAMS = 16
"""Stream ids per lane in their counter word; bits above hold the Gumbel lane."""


class Stream(IntEnum):
    """Independent noise streams; a word of the counter."""

    TARGET = 0
    """The target's draws, shared with the drafter under `match`."""
    DRAFT = 1
    """Draws of a drafter under rules that do not share the target's noise."""
    ACCEPT = 2
    """Acceptance tests."""
    BONUS = 3
    """The token that follows the accepted path."""


def philox(counter: Words[Word], key: tuple[Word, Word]) -> Words[Word]:
    """Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
    section 4).

    `counter` and `key` are integers, or Int64 tensors that hold 32-bit words; any
    shapes that broadcast. Returns four words likewise. Words shared by a row or a
    column stay small until the rounds mix them, which saves two rounds of ten.
    """
    c0, c1, c2, c3 = counter
    for step in range(_ROUNDS):
        k0, k1 = (
            (word + step * weyl) & _MASK for word, weyl in zip(key, _WEYL, strict=True)
        )
        # Products wrap modulo 2**64, which loses no bit; the shift copies the sign bit,
        # the mask removes the copies. c1 and c3 keep a product's upper half until they
        # are mixed in: only factors must be masked.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = ((p1 >> 32) ^ (c1 ^ k0)) & _MASK
        c1 = p1
        c2 = ((p0 >> 32) ^ (c3 ^ k1)) & _MASK
        c3 = p0
    return c0, c1 & _MASK, c2, c3 & _MASK


def start(seed: int) -> int:
    """Return the key of a text without a token."""
    return extend(seed, 0)


def extend(key: int, token: int) -> int:
    """Return the key of a text with one more token; the C code defines it likewise.

    A bijection of the keys for each token: a step of SplitMix64 (Steele, Lea, Flood
    2014). Negative tokens work too.
    """
    word = (key + token + 1) * 0x9E3779B97F4A7C15 & _MASK_64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _MASK_64
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _MASK_64
    return word ^ word >> 31


def extended(key: int, tokens: Sequence[int]) -> int:
    """Return the key of a text with these tokens after it."""
    if len(tokens) > _FEW:
        from_c = sampling.extend(key, tokens)
        if from_c is not None:
            return from_c
    for token in tokens:
        key = extend(key, token)
    return key


def seed_of(seed: int, number: int) -> int:
    """Return the seed of an answer, of several to one prompt; the first has `seed`.

    It has 53 bits, which JSON keeps in every language.
    """
    return extend(start(seed), number) >> 11 if number else seed


def gumbel(
    keys: Sequence[int],
    vocab: int,
    *,
    stream: Stream = Stream.TARGET,
    depths: Sequence[int] | None = None,
    rounds: Sequence[int] | None = None,
    lanes: Sequence[int] | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "rows vocab"]:
    """Return standard Gumbel noise, Float32, one row per (key, depth, round, lane);
    finite, from -3.2 to 22.9.

    `keys` are in [0, 2**64), depths and rounds (default 0) in [0, 2**32), lanes in
    [0, 2**28). Computed in float64, so that devices whose logarithms differ in the last
    bit of a double round to the same float32. On CPU in C if there is a compiler; on
    CUDA in one kernel if there is Triton.
    """
    zeros = [0] * len(keys)
    counters = depths or zeros, _streams(stream, lanes, len(keys)), rounds or zeros
    if device is None or torch.device(device).type == "cpu":
        from_c = sampling.gumbel(keys, *counters, vocab)
        if from_c is not None:
            return from_c
    elif (kernel := sampling.on_gpu()) is not None:
        words = torch.tensor([[signed(key) for key in keys], *counters])
        return kernel(words.to(device), vocab)
    return plain_gumbel(
        keys,
        vocab,
        stream=stream,
        depths=depths,
        rounds=rounds,
        lanes=lanes,
        device=device,
    )


def plain_gumbel(
    keys: Sequence[int],
    vocab: int,
    *,
    stream: Stream = Stream.TARGET,
    depths: Sequence[int] | None = None,
    rounds: Sequence[int] | None = None,
    lanes: Sequence[int] | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "rows vocab"]:
    """Return the noise of `gumbel`, in torch, on any device: the reference."""
    quads = torch.arange((vocab + 3) // 4, device=device)
    streams = _streams(stream, lanes, len(keys))
    words = _words(keys, quads, streams=streams, depths=depths, rounds=rounds)
    noise = torch.empty(len(keys), len(quads), 4, dtype=torch.float64, device=device)
    for offset, word in enumerate(words):
        noise[..., offset] = word
    _unit_(noise).log_().neg_().log_().neg_()
    return noise.view(len(keys), -1)[:, :vocab].float()


def signed(key: int) -> int:
    """Return the number that has the same 64 bits as an Int64."""
    return key - 2**64 if key >= 2**63 else key


def gumbel_of(key: int, tokens: Sequence[int], vocab: int) -> list[float]:
    """Return the noise of some tokens in the row of a key."""
    from_c = sampling.gumbel_of(key, tokens)
    return plain_gumbel([key], vocab)[0, tokens].tolist() if from_c is None else from_c


def uniform(
    keys: Sequence[int],
    *,
    stream: Stream,
    depths: Sequence[int] | None = None,
    rounds: Sequence[int] | None = None,
    lanes: Sequence[int] | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "rows"]:
    """Return uniform noise in the open interval (0, 1), Float64 (in float32 the largest
    would round to 1).

    Lanes give several numbers for one (key, depth, round); the lane uses the token's
    word of the counter.
    """
    zeros = [0] * len(keys)
    lanes = lanes or zeros
    if len(keys) <= _FEW and torch.device(device or "cpu").type == "cpu":
        places = zip(keys, depths or zeros, rounds or zeros, lanes, strict=True)
        numbers = [_number(*place, stream) for place in places]
        return torch.tensor(numbers, dtype=torch.float64)
    lane = _column(lanes, device)
    streams = _streams(stream, None, len(keys))
    words = torch.cat(
        _words(keys, lane // 4, streams=streams, depths=depths, rounds=rounds), dim=1
    )
    return _unit_(words.gather(1, lane % 4).double()).squeeze(1)


def _number(key: int, depth: int, round_: int, lane: int, stream: int) -> float:
    """Return one number of `uniform`."""
    words = philox((lane // 4, depth, stream, round_), (key & _MASK, key >> 32))
    return (words[lane % 4] + 0.5) * 2.0**-32


def _streams(stream: Stream, lanes: Sequence[int] | None, rows: int) -> list[int]:
    """Return the counter word of stream and lane."""
    if lanes is None:
        return [int(stream)] * rows
    return [stream + _STREAMS * lane for lane in lanes]


def _words(
    keys: Sequence[int],
    quads: Tensor,
    *,
    streams: Sequence[int],
    depths: Sequence[int] | None,
    rounds: Sequence[int] | None,
) -> Words[Tensor]:
    """Return the four output words of each (row, quad), Int64 [rows, quads]."""
    device, zeros = quads.device, [0] * len(keys)
    depth = _column(depths or zeros, device)
    round_ = _column(rounds or zeros, device)
    key = (
        _column([key & _MASK for key in keys], device),
        _column([key >> 32 for key in keys], device),
    )
    return philox((quads, depth, _column(streams, device), round_), key)


def _column(
    values: Sequence[int], device: torch.device | str | None
) -> Int[Tensor, "rows 1"]:
    return torch.tensor(values, dtype=torch.int64, device=device).unsqueeze(1)


def _unit_(words: Tensor) -> Tensor:
    """Map 32-bit words (Float64) to (word + 1/2) / 2**32 in place, exactly."""
    return words.add_(0.5).mul_(2.0**-32)
