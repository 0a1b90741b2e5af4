"""What it takes to ask a drafter: so much for the draft tokens of a round, and so much for text it has not read yet.

Knows seconds and counts; knows nothing about drafters.
"""

from __future__ import annotations

from foreword.draft.making import DECAY, Making


class Asking:
    """Two lines: seconds by the draft tokens that are asked for, and what is left by the tokens caught up with."""

    def __init__(self) -> None:
        self._line = Making()
        self._square = self._both = 0.0
        """Sums for the second line, which goes through zero: text that was read decides by how much there was."""

    @property
    def known(self) -> bool:
        """A round was seen in which there was nothing to catch up with."""
        return self._line.weight > 0

    @property
    def reads(self) -> bool:
        """A round was seen in which there was, after such a one."""
        return self._square > 0

    def seconds(self, wanted: float, share: float = 1.0) -> float:
        """To ask for so many draft tokens; `share` is the part of the beginning that they have to bear."""
        return share * self._line.start + self._line.each * wanted

    def catching_up(self, unread: int) -> float:
        """To read so many tokens first; 0 while nobody knows."""
        return unread * self._both / self._square if self._square else 0.0

    def learn(self, wanted: int, unread: int, seconds: float) -> None:
        """A round asked for so many draft tokens, of texts with so many unread tokens together."""
        if unread and not self.known:
            return  # what was reading and what was not cannot be told apart yet
        if unread:
            left = max(seconds - self.seconds(wanted), 0.0)
            self._square = DECAY * self._square + unread**2
            self._both = DECAY * self._both + left * unread
        self._line.learn(wanted, max(seconds - self.catching_up(unread), 0.0))
