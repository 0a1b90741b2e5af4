"""Acceptance of draft tokens by kind, which drafters state as probabilities."""

from collections.abc import Hashable

from foreword.estimators import shrunk

STEADINESS = 4.0
"""Outcomes. Weight of the prior."""
MEMORY = 0.99
"""Decay per outcome: an effective window of about 100."""


class AcceptanceEstimate:
    """Acceptance probability by kind of draft token: a Beta mean with decay."""

    __slots__ = ("_accepted", "_tried")

    def __init__(self) -> None:
        self._accepted: dict[Hashable, float] = {}
        self._tried: dict[Hashable, float] = {}

    def probability(self, kind: Hashable, prior: float) -> float:
        """Return the acceptance probability of this kind, in (0, 1); `prior` is its
        value without outcomes.
        """
        accepted = self._accepted.get(kind, 0.0)
        return shrunk(accepted, self._tried.get(kind, 0.0), prior, STEADINESS)

    def learn(self, kind: Hashable, accepted: bool) -> None:
        """Record whether a draft token of this kind was accepted."""
        self._accepted[kind] = MEMORY * self._accepted.get(kind, 0.0) + accepted
        self._tried[kind] = MEMORY * self._tried.get(kind, 0.0) + 1
