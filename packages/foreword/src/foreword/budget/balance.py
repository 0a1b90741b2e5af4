"""Gains and losses of drafting, by kind of request and size of the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from foreword.budget.constants import C
from foreword.budget.kept import KeptPace


@dataclass(slots=True)
class Balance:
    """Gains and losses of drafting for one kind of sequences in batches of similar
    size.
    """

    written: float = 0.0
    """Tokens of rounds with draft tokens."""
    spent: float = 0.0
    """Duration of those rounds, in rounds of the same batch without draft tokens."""
    lost: float = 0.0
    """Seconds that drafting has lost, less those it won and those it is allowed.

    Once the loss budget is spent, losing drafts stop, which bounds the total slowdown.
    """
    sequences: int = 0
    """Sequences of this round that were given a budget."""

    @property
    def is_losing(self) -> bool:
        """Whether rounds without draft tokens would have written more in that time."""
        return self.written < C.losing * self.spent

    @property
    def speed(self) -> float:
        """Tokens in the time of one round of the same batch without draft tokens; 1
        before any round.
        """
        return self.written / self.spent if self.spent else 1.0

    @property
    def pace(self) -> float:
        """The same, at least 1."""
        return max(1.0, self.speed)

    def recall(self, speed: float, lost: float) -> None:
        """Begin with a speed that was measured before, below that of plain decoding:
        all that may be lost at first, `lost` seconds, is.
        """
        self.written, self.spent = speed * C.evidence, C.evidence
        self.lost = C.spent * lost

    def add(self, accepted: int, spent: float) -> None:
        """Learn from one sequence's round with draft tokens."""
        self.written = C.memory * self.written + accepted + 1
        self.spent = C.memory * self.spent + spent

    def settle(self, allowed: float) -> None:
        """End a round: allow some of a loss."""
        self.lost = min(self.lost, max(self.lost - allowed * self.sequences, 0.0))
        self.sequences = 0


@dataclass(slots=True)
class Balances:
    """A balance for each sort of requests, (greedy, plain), and bits of the batch size:
    drafting that loses in a batch may pay for one sequence.
    """

    kept: KeptPace | None = None
    """What earlier processes have kept; None = nothing, and nothing is kept."""
    found: dict[tuple[bool, bool, int], Balance] = field(default_factory=dict)

    def of(
        self, sort: tuple[bool, bool], batch: int, seconds: Callable[[], float]
    ) -> Balance:
        """Return the balance of a sort in batches of such a size; `seconds` returns
        what drafting may lose at first.
        """
        bits = batch.bit_length()
        balance = self.found.get((*sort, bits))
        if balance is None:
            balance = self.found[*sort, bits] = Balance()
            speed = self.kept.pace(sort, bits) if self.kept else None
            if speed is not None and speed < C.losing:
                balance.recall(speed, seconds())
        return balance

    def keep(self, sort: tuple[bool, bool], batch: int) -> None:
        """Keep the speed of a sort for later processes, if there is enough evidence."""
        bits = batch.bit_length()
        balance = self.found.get((*sort, bits))
        if self.kept and balance is not None and balance.spent >= C.evidence:
            self.kept.record(sort, bits, balance.speed)
