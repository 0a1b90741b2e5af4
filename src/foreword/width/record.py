"""What became of the guesses at a text, or at all texts of a kind, the past fading.

Knows counts; knows nothing about costs, nor about how guesses are made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from foreword.types import Sequence
from foreword.width.base import Outcome
from foreword.width.company import Promised

LIMIT = 16
"""Longest chain that is ever tried."""
DECAY = 0.95
"""Weight of the past, per round: about twenty rounds are remembered."""
PATIENCE = 4
"""Rounds without guessing before it is tried again, the first time it loses; twice as many every time it still does."""
ANEW = 8
"""Tokens that nobody has guessed at, at most, before there is a text to catch up with."""
LONGEST = 256
"""Rounds without guessing at most, while guesses may cost anything."""


@dataclass(slots=True)
class Record:
    """Decayed counts of one sequence."""

    scored: list[float] = field(default_factory=lambda: [0.0] * LIMIT)
    """Rounds in which a guess of depth i was judged."""
    kept: list[float] = field(default_factory=lambda: [0.0] * LIMIT)
    """Rounds in which it was kept."""
    promised: Promised = field(default_factory=Promised)
    written: float = 0.0
    """Tokens of rounds with guesses."""
    spent: float = 0.0
    """What those rounds took, in rounds without guesses beside the same company."""
    read: int = 0
    """Tokens of the text after the last round with guesses."""
    lost: float = 0.0
    """Of a kind of texts: seconds that guesses have lost, less what they won and what they are allowed.

    Beyond the purse nothing that loses is tried, so all texts together take little longer than without guesses.
    """
    pause: int = 0
    """Rounds to go without guessing."""
    patience: int = PATIENCE
    """Length of the next pause at least; doubles each time guessing still loses, until a try wins."""

    def add(self, outcome: Outcome, spent: float, promised: list[float] | None, *, said: bool) -> None:
        """Learn from a round. Where guesses have said how likely they are, nobody asks how deep they were kept."""
        if promised is not None:
            self.promised.add(promised, DECAY)
        for depth in range(0 if said else LIMIT):
            self.scored[depth] *= DECAY
            self.kept[depth] *= DECAY
            if depth < min(outcome.drafted, outcome.accepted + 1):
                self.scored[depth] += 1
                self.kept[depth] += depth < outcome.accepted
        self.written = DECAY * self.written + outcome.accepted + 1
        self.spent = DECAY * self.spent + spent

    def unread(self, sequence: Sequence) -> int:
        """Tokens to catch up with, but for the few that a round or two bring."""
        count = len(sequence.tokens) - self.read
        return count if count > ANEW else 0

    @property
    def loses(self) -> bool:
        """Rounds without guesses would have written more in that time."""
        return self.written < 0.98 * self.spent

    def rest(self) -> None:
        """Stop guessing for a while. Old rounds count little afterwards: the text may have become easier."""
        self.pause = self.patience
        self.patience = min(2 * self.patience, LONGEST)
        self.written *= 0.3
        self.spent *= 0.3
