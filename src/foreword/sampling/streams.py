"""Noise streams of the drafter and the rule, per sequence and round."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.sampling.noise import GumbelBuffer, Stream, gumbel, uniform
from foreword.types import Draft, Lists, Noise, Request


class NoiseStreams:
    """Noise keyed by (seed, position, token), so that batch, device and drafter never
    change it.

    With `shared` the drafter samples with the target's noise (rule `match`). Otherwise
    its noise is an independent stream, and the round is part of every key: the rule may
    have used noise of positions that it then rejected, and must not reuse it.
    """

    def __init__(
        self,
        vocab: int,
        *,
        shared: bool,
        lists: Lists = "one",
        device: torch.device | None = None,
    ) -> None:
        self.wants_probs = not shared
        self.lists: Lists = lists
        self._vocab = vocab
        self._device = device
        self._buffers: dict[int, GumbelBuffer] = {}

    def drafting(
        self, sequence: Request, depth: int, lane: int = 0
    ) -> Float[Tensor, "vocab"] | None:
        """Return Gumbel noise for the draft token at `depth` (0 = next after the last
        committed); None when greedy.

        Lanes give independent noise for draws of one depth; a rule that shares its
        noise has only lane 0.
        """
        if sequence.params.greedy:
            return None
        position = len(sequence.tokens) + depth
        if not self.wants_probs:
            return self._buffer(sequence).rows(position, 1)[0]
        return gumbel(
            [sequence.seed],
            [position],
            self._vocab,
            stream=Stream.DRAFT,
            rounds=[sequence.rounds],
            lanes=[lane],
            device=self._device,
        )[0]

    def predicting(
        self, sequence: Request, count: int
    ) -> Float[Tensor, "count vocab"] | None:
        """Return the noise of depths 0 to count - 1, for a rule that shares its noise;
        None when greedy.
        """
        if sequence.params.greedy:
            return None
        return self._buffer(sequence).rows(len(sequence.tokens), count)

    def written(
        self, sequence: Request, count: int
    ) -> Float[Tensor, "count vocab"] | None:
        """Return the noise that the last `count` tokens were drawn with, for a rule
        that shares its noise; None when greedy.
        """
        if sequence.params.greedy:
            return None
        end = len(sequence.tokens)
        # not from the buffer, which moves forward
        return gumbel(
            [sequence.seed] * count,
            range(end - count, end),
            self._vocab,
            device=self._device,
        )

    def verifying(
        self, sequences: tuple[Request, ...], draft: Draft, depths: list[list[int]]
    ) -> Noise:
        """Return the noise of one verification.

        `depths[row]`: depth of each column's draw, 0 = next token.
        """
        if self.wants_probs:
            return Noise(
                None,
                self._uniform(sequences, draft, Stream.ACCEPT),
                self._uniform(sequences, draft, Stream.BONUS),
            )
        unused = torch.zeros(
            len(sequences), draft.nodes + 1, device=self._device, dtype=torch.float32
        )
        if all(sequence.params.greedy for sequence in sequences):
            return Noise(None, unused, unused)
        rows = [
            self._target(sequence, at, draft.nodes + 1)
            for sequence, at in zip(sequences, depths, strict=True)
        ]
        return Noise(
            rows[0][None] if len(rows) == 1 else torch.stack(rows), unused, unused
        )

    def forget(self, sequence: Request) -> None:
        """Free the noise of a sequence that has ended."""
        self._buffers.pop(sequence.id, None)

    def _target(
        self, sequence: Request, depths: list[int], width: int
    ) -> Float[Tensor, "column vocab"]:
        """Return the target's Gumbel noise of the draws at `depths`, padded to `width`
        rows.
        """
        if sequence.params.greedy:
            return torch.zeros(
                width, self._vocab, device=self._device, dtype=torch.float32
            )
        rows = self._buffer(sequence).rows(len(sequence.tokens), max(depths) + 1)
        return (
            rows
            if depths == list(range(width))
            else rows[depths + [0] * (width - len(depths))]
        )

    def _buffer(self, sequence: Request) -> GumbelBuffer:
        if sequence.id not in self._buffers:
            self._buffers[sequence.id] = GumbelBuffer(
                sequence.seed, self._vocab, device=self._device
            )
        return self._buffers[sequence.id]

    def _uniform(
        self, sequences: tuple[Request, ...], draft: Draft, stream: Stream
    ) -> Float[Tensor, "batch column"]:
        lanes = list(range(draft.nodes + 1))
        rows = [
            uniform(
                [sequence.seed] * len(lanes),
                [len(sequence.tokens)] * len(lanes),
                stream=stream,
                rounds=[sequence.rounds] * len(lanes),
                lanes=lanes,
                device=self._device,
            )
            for sequence in sequences
        ]
        return torch.stack(rows)
