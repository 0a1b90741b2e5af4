"""Failures of a drafter, which never fail or change a request, and its pauses."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from foreword.draft.base import Drafter
from foreword.draft.none import NoDrafter
from foreword.errors import named
from foreword.types import Request

FAULTS = 3
"""Faults that pause a drafter for all, without `CLEAN` clean rounds in between."""
CLEAN = 64
"""Rounds. Drafting rounds without a fault that reset the fault count."""
PAUSE, LONGEST = 256, 65_536
"""Rounds. The first and the longest pause; each doubles the one before."""


class Failures:
    """Counts the failures of one drafter.

    A failure turns drafting off for its request. Repeated failures pause the drafter
    for all requests; it is tried again later with new ones. The first failure and each
    pause give a RuntimeWarning; `Request.undrafted` keeps the reason.
    """

    def __init__(self, drafter: Drafter) -> None:
        """The pause of a drafter that stands in for another does not end."""
        missing = drafter.missing if isinstance(drafter, NoDrafter) else None
        self.last: str | None = missing
        """The last error of the drafter."""
        self._count = 0
        self._clean = 0
        self._paused = math.inf if missing else 0
        self._pause = PAUSE
        self._warned = False

    @property
    def is_paused(self) -> bool:
        """Whether drafting is off for all requests."""
        return bool(self._paused)

    def count_down(self) -> None:
        """Count a round of a pause."""
        if self._paused:
            self._paused -= 1

    def count_clean(self) -> None:
        """Count a round with draft tokens and without a failure."""
        if not self._count:
            return
        self._clean += 1
        if self._clean >= CLEAN:
            self._count = self._clean = 0

    def is_off(self, request: Request) -> bool:
        """Whether the drafter is off for a request."""
        return request.undrafted is not None

    def turn_off(self, request: Request) -> None:
        """Turn the drafter off for a request: it has failed, or missed some tokens."""
        request.undrafted = request.undrafted or self.last

    @contextmanager
    def contained(self, request: Request | None = None) -> Iterator[None]:
        """Record an exception of the drafter as a failure, of `request` if given."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a drafter's error must not fail the request
            self.record(error, request)

    def record(
        self, error: Exception, request: Request | None = None, *, quiet: bool = False
    ) -> None:
        """Turn drafting off for a request, and after `FAULTS` failures for all."""
        self.last = named(error)
        if request is not None:
            self.turn_off(request)
        self._count = 0 if self._paused else self._count + 1
        self._clean = 0
        if self._count >= FAULTS:
            self._paused = self._pause
            self._pause = min(2 * self._pause, LONGEST)
            self._count = 0
            self._warn(
                f"the drafter failed {FAULTS} times and is off for all requests for "
                f"{self._paused} rounds"
            )
        elif not (self._warned or self._paused or quiet):
            extent = "one request" if request else "one round"
            self._warn(f"the drafter failed and is off for {extent}")
        self._warned = True

    def _warn(self, event: str) -> None:
        message = f"{event}; the text is not affected, only slower. {self.last}"
        warnings.warn(message, RuntimeWarning, stacklevel=6)
