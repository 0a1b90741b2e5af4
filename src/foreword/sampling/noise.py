"""Counter-based noise: every number is a function of (seed, position, token, stream,
lane, round) only.

The same integers come out on every device and in every batch.
"""

from collections.abc import Sequence
from enum import IntEnum

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.native import sampling

Words = tuple[Tensor, Tensor, Tensor, Tensor]

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_AHEAD_BYTES = 2**18
_STREAMS = 16
"""Stream ids per lane in their counter word; the bits above hold the lane of Gumbel
noise.
"""


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


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
    section 4).

    `counter` and `key` are Int64 tensors holding 32-bit words; any shapes that
    broadcast. Returns four Int64 tensors of 32-bit words. Words shared by a row or a
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


def gumbel(
    seeds: Sequence[int],
    positions: Sequence[int],
    vocab: int,
    *,
    stream: Stream = Stream.TARGET,
    rounds: Sequence[int] | None = None,
    lanes: Sequence[int] | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "rows vocab"]:
    """Return standard Gumbel noise, Float32, one row per (seed, position, round, lane);
    finite, from -3.2 to 22.9.

    Lanes (default 0) are independent rows for one (seed, position, round). `seeds` are
    in [0, 2**63), `positions` and `rounds` in [0, 2**32), `lanes` in [0, 2**28).
    Computed in float64, so that devices whose logarithms differ in the last bit of a
    double round to the same float32. On CPU in C if there is a compiler.
    """
    if device is None or torch.device(device).type == "cpu":
        every_round = [0] * len(seeds) if rounds is None else rounds
        from_c = sampling.gumbel(
            seeds, positions, _streams(stream, lanes, len(seeds)), every_round, vocab
        )
        if from_c is not None:
            return from_c
    return plain_gumbel(
        seeds,
        positions,
        vocab,
        stream=stream,
        rounds=rounds,
        lanes=lanes,
        device=device,
    )


def plain_gumbel(
    seeds: Sequence[int],
    positions: Sequence[int],
    vocab: int,
    *,
    stream: Stream = Stream.TARGET,
    rounds: Sequence[int] | None = None,
    lanes: Sequence[int] | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "rows vocab"]:
    """Return the noise of `gumbel`, in torch, on any device: the reference."""
    quads = torch.arange((vocab + 3) // 4, device=device)
    words = _words(
        seeds,
        positions,
        quads,
        streams=_streams(stream, lanes, len(seeds)),
        rounds=rounds,
    )
    noise = torch.empty(len(seeds), len(quads), 4, dtype=torch.float64, device=device)
    for offset, word in enumerate(words):
        noise[..., offset] = word
    _unit_(noise).log_().neg_().log_().neg_()
    return noise.view(len(seeds), -1)[:, :vocab].float()


def uniform(
    seeds: Sequence[int],
    positions: Sequence[int],
    *,
    stream: Stream,
    rounds: Sequence[int] | None = None,
    lanes: Sequence[int] | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "rows"]:
    """Return uniform noise in the open interval (0, 1), Float64 (in float32 the largest
    would round to 1).

    Lanes give several numbers for one (seed, position, round); the lane uses the
    token's word of the counter.
    """
    lane = _column([0] * len(seeds) if lanes is None else lanes, device)
    streams = _streams(stream, None, len(seeds))
    words = torch.cat(
        _words(seeds, positions, lane // 4, streams=streams, rounds=rounds), dim=1
    )
    return _unit_(words.gather(1, lane % 4).double()).squeeze(1)


class GumbelBuffer:
    """Read-ahead buffer of one sequence's target noise, so that drafter and target
    share each row.
    """

    def __init__(
        self, seed: int, vocab: int, *, device: torch.device | str | None = None
    ) -> None:
        self._seed = seed
        self._vocab = vocab
        self._device = device
        self._ahead = max(4, _AHEAD_BYTES // (4 * vocab))
        self._rows = torch.empty(
            4 * self._ahead, vocab, device=device, dtype=torch.float32
        )
        self._first = self._end = 0  # positions first to end - 1 are in the buffer

    def rows(self, start: int, count: int) -> Float[Tensor, "count vocab"]:
        """Return the noise of positions start to start + count - 1, Float32, equal to
        `gumbel` bit for bit.

        A read-only view, valid until the next call. Any start works; a start that moves
        forward is fast.
        """
        if not self._first <= start <= self._end:
            self._first = self._end = start
        missing = start + count - self._end
        if missing > 0:
            self._extend(start, max(missing, self._ahead))
        return self._rows.narrow(0, start - self._first, count)

    def _extend(self, start: int, more: int) -> None:
        """Append `more` rows; if they do not fit, drop the rows before `start`."""
        if self._end - self._first + more > self._rows.shape[0]:
            kept = self._rows[start - self._first : self._end - self._first].clone()
            if kept.shape[0] + more > self._rows.shape[0]:
                self._rows = kept.new_empty(2 * (kept.shape[0] + more), self._vocab)
            self._rows[: kept.shape[0]] = kept
            self._first = start
        at = self._end - self._first
        positions = range(self._end, self._end + more)
        self._rows[at : at + more] = gumbel(
            [self._seed] * more, positions, self._vocab, device=self._device
        )
        self._end += more


def _streams(stream: Stream, lanes: Sequence[int] | None, rows: int) -> list[int]:
    """Return the counter word of stream and lane."""
    if lanes is None:
        return [int(stream)] * rows
    return [stream + _STREAMS * lane for lane in lanes]


def _words(
    seeds: Sequence[int],
    positions: Sequence[int],
    quads: Tensor,
    *,
    streams: Sequence[int],
    rounds: Sequence[int] | None,
) -> Words:
    """Return the four output words of each (row, quad of tokens), Int64
    [rows, quads].
    """
    device = quads.device
    position = _column(positions, device)
    round_ = _column([0] * len(seeds) if rounds is None else rounds, device)
    key = (
        _column([seed & _MASK for seed in seeds], device),
        _column([seed >> 32 for seed in seeds], device),
    )
    return philox((quads, position, _column(streams, device), round_), key)


def _column(
    values: Sequence[int], device: torch.device | str | None
) -> Int[Tensor, "rows 1"]:
    return torch.tensor(values, dtype=torch.int64, device=device).unsqueeze(1)


def _unit_(words: Tensor) -> Tensor:
    """Map 32-bit words (Float64) to (word + 1/2) / 2**32 in place.

    Exact, so a later log is accurate near 1.
    """
    return words.add_(0.5).mul_(2.0**-32)
