"""The cost of drafting: seconds per draft token of a round, and per token that the
drafter has yet to read.
"""

from __future__ import annotations

from foreword.estimators import DECAY, LinearCost


class DraftingCost:
    """Two linear fits: seconds by requested draft tokens, and the remaining seconds by
    unread tokens.
    """

    def __init__(self) -> None:
        self._line = LinearCost()
        self._square = 0.0
        self._both = 0.0
        """Sums of the second fit, which goes through zero: rounds weigh by the tokens
        they read.
        """

    @property
    def measured(self) -> bool:
        """Whether a round with nothing to catch up on was seen."""
        return self._line.weight > 0

    @property
    def catch_up_measured(self) -> bool:
        """Whether a round with unread tokens was seen after such a one."""
        return self._square > 0

    def seconds(self, count: float, share: float = 1.0) -> float:
        """Return the seconds of drafting `count` tokens; `share` is the part of the
        fixed cost to include.
        """
        return share * self._line.start + self._line.each * count

    def catch_up(self, unread: int) -> float:
        """Return the seconds of reading `unread` tokens first; 0 until measured."""
        if not self._square:
            return 0.0
        return unread * self._both / self._square

    def learn(self, count: int, unread: int, seconds: float) -> None:
        """Record a round that requested `count` draft tokens, for sequences with
        `unread` tokens in total.
        """
        if unread and not self.measured:
            return  # reading and drafting cannot be told apart yet
        if unread:
            left = max(seconds - self.seconds(count), 0.0)
            self._square = DECAY * self._square + unread**2
            self._both = DECAY * self._both + left * unread
        drafting = seconds - self.catch_up(unread)
        self._line.learn(count, max(drafting, 0.0))
