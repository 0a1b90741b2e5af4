"""Who draws with which noise: hands the drafter and the rule their streams for one sequence and round.

Knows streams and sequences; knows nothing about models or how a rule decides.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.noise import Stream, Tape, gumbel, uniform
from foreword.types import Draft, Lists, Noise, Sequence


class KeyedDraws:
    """Draws keyed by (seed, position, token), so that company, device and drafter never change them.

    With `shared` the drafter guesses with the target's own noise (rule `match`). Without, its noise is an independent
    stream, and every stream also takes the round: such a rule may have looked at numbers of positions that it then gave
    up, and must not meet them again.
    """

    def __init__(self, vocab: int, *, shared: bool, lists: Lists = "one", device: torch.device | None = None) -> None:
        self.wants_probs = not shared
        self.lists: Lists = lists
        self._vocab = vocab
        self._device = device
        self._tapes: dict[int, Tape] = {}

    def drafting(self, sequence: Sequence, depth: int, lane: int = 0) -> Float[Tensor, "vocab"] | None:
        """Gumbel noise for the guess `depth` tokens after the last committed one (0 = the next); None when greedy.

        Lanes are independent of each other, for draws of one depth; a rule that shares its noise has only one.
        """
        if sequence.params.greedy:
            return None
        position = len(sequence.tokens) + depth
        if not self.wants_probs:
            return self._tape(sequence).rows(position, 1)[0]
        return gumbel(
            [sequence.seed],
            [position],
            self._vocab,
            stream=Stream.DRAFT,
            rounds=[sequence.rounds],
            lanes=[lane],
            device=self._device,
        )[0]

    def foreseeing(self, sequence: Sequence, count: int) -> Float[Tensor, "count vocab"] | None:
        """The same for guesses 0 to count - 1 at once, under a rule that shares its noise; None when greedy."""
        if sequence.params.greedy:
            return None
        return self._tape(sequence).rows(len(sequence.tokens), count)

    def deciding(self, sequences: tuple[Sequence, ...], draft: Draft, depths: list[list[int]]) -> Noise:
        """The noise of one decision. `depths[row]` = distance of each node's draw from the last committed token."""
        if self.wants_probs:
            return Noise(
                None, self._uniform(sequences, draft, Stream.ACCEPT), self._uniform(sequences, draft, Stream.BONUS)
            )
        unused = torch.zeros(len(sequences), draft.nodes + 1, device=self._device)
        if all(sequence.params.greedy for sequence in sequences):
            return Noise(None, unused, unused)
        rows = [self._target(sequence, at, draft.nodes + 1) for sequence, at in zip(sequences, depths, strict=True)]
        return Noise(rows[0][None] if len(rows) == 1 else torch.stack(rows), unused, unused)

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._tapes.pop(sequence.id, None)

    def _target(self, sequence: Sequence, depths: list[int], width: int) -> Float[Tensor, "column vocab"]:
        """The target's Gumbel noise for draws `depths` after the last committed token, padded to `width` rows."""
        if sequence.params.greedy:
            return torch.zeros(width, self._vocab, device=self._device)
        rows = self._tape(sequence).rows(len(sequence.tokens), max(depths) + 1)
        return rows if depths == list(range(width)) else rows[depths + [0] * (width - len(depths))]

    def _tape(self, sequence: Sequence) -> Tape:
        if sequence.id not in self._tapes:
            self._tapes[sequence.id] = Tape(sequence.seed, self._vocab, device=self._device)
        return self._tapes[sequence.id]

    def _uniform(self, sequences: tuple[Sequence, ...], draft: Draft, stream: Stream) -> Float[Tensor, "batch column"]:
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
