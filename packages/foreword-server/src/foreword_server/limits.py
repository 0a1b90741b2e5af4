"""Limits of a server: the bounded queue, and the concurrency and rate of one key."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from prometheus_client.core import CounterMetricFamily, Metric

from foreword_server.errors import ApiError

MINUTE = 60.0
MOST_ITEMS = 2**19
"""Values in a JSON body, parsed in a tenth of a second; no other Python runs then."""
MOST_KEYS = 4096
"""Keys. Token buckets kept at a time; full ones are dropped first."""


@dataclass(slots=True)
class Limits:
    """Running answers and a token bucket for each key; of the event loop only."""

    queue: int
    concurrent: int | None
    rate: float | None
    active: int = 0
    """Answers that run or wait."""
    requests: int = 4096
    """Most requests that are read, answered or written at a time."""
    bytes: int = 2**28
    """Most bytes of bodies of all these requests."""
    statuses: Counter[int] = field(default_factory=Counter)
    """Responses to clients by status; 499: the client left."""
    _open: int = 0
    """Requests that are read, answered or written."""
    _held: int = 0
    """Bytes of their bodies."""
    _of_key: Counter[str] = field(default_factory=Counter)
    _buckets: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Key -> (requests left, time of the last one)."""

    @contextmanager
    def place(self, key: str, answers: int) -> Iterator[None]:
        """Hold places for answers. Raises ApiError 429 if there are too few."""
        if answers > self.queue:
            raise ApiError(
                400,
                f"cannot give {answers} answers: the server holds {self.queue} at a "
                "time. Ask for less",
            )
        if self.active + answers > self.queue:
            raise ApiError(
                429,
                f"cannot queue this request: {self.active} answers run or wait. Try "
                "again later",
                code="overloaded",
                retry_after=1 + self.active // 32,
            )
        if (
            self.concurrent is not None
            and self._of_key[key] + answers > self.concurrent
        ):
            raise ApiError(
                429,
                f"cannot queue this request: this key has {self._of_key[key]} answers "
                f"of {self.concurrent}. Wait",
                code="concurrency_limit_exceeded",
                retry_after=1,
            )
        self.active += answers
        self._of_key[key] += answers
        try:
            yield
        finally:
            self.active -= answers
            self._of_key[key] -= answers
            if not self._of_key[key]:
                del self._of_key[key]

    @contextmanager
    def request(self, *, is_upload: bool = False) -> Iterator[Callable[[int], None]]:
        """Hold a place for one request; yield a function that counts bytes of its body,
        unless they are written to disk.

        Both raise ApiError 429 when there are too many.
        """
        held = 0

        def read(count: int) -> None:
            nonlocal held
            if is_upload:
                return
            if self._held + count > self.bytes:
                raise _overloaded(
                    "the bodies of other requests fill the memory for them"
                )
            self._held += count
            held += count

        if self._open >= self.requests:
            raise _overloaded(f"{self._open} others are served")
        self._open += 1
        try:
            yield read
        finally:
            self._open -= 1
            self._held -= held

    def responses(self, labels: Mapping[str, str]) -> Metric:
        """Return the responses as a metric, with these labels and one of the status."""
        family = CounterMetricFamily(
            "foreword:responses",
            "Responses to clients, refusals too, by status.",
            labels=["code", *labels],
        )
        for status, count in self.statuses.items():
            family.add_metric([str(status), *labels.values()], count)
        return family

    def count(self, key: str) -> None:
        """Count one request. Raises ApiError 429 beyond the rate."""
        if self.rate is None:
            return
        now = monotonic()
        left, last = self._buckets.get(key, (max(1.0, self.rate), now))
        left = min(max(1.0, self.rate), left + (now - last) * self.rate / MINUTE)
        if left < 1:
            raise ApiError(
                429,
                f"cannot serve this request: this key may send {self.rate:g} a "
                "minute. Wait, then send it again",
                code="rate_limit_exceeded",
                retry_after=max(1, round((1 - left) * MINUTE / self.rate)),
            )
        if len(self._buckets) >= MOST_KEYS and key not in self._buckets:
            del self._buckets[max(self._buckets, key=lambda key: self._buckets[key][0])]
        self._buckets[key] = (left - 1, now)


def _overloaded(reason: str) -> ApiError:
    return ApiError(
        429,
        f"cannot read this request: {reason}. Try again later",
        code="overloaded",
        retry_after=1,
    )
