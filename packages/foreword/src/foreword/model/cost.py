"""Cost model of forwards: seconds by rows and context, measured, cached on disk."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from foreword.estimators import interpolated
from foreword.files import CachedValues
from foreword.model.backend import Backend
from foreword.model.kv.reads import Read
from foreword.native.cpu import processor
from foreword.native.openmp import threads
from foreword.version import VERSION

if TYPE_CHECKING:
    from foreword.model.encoder import EncoderMemory

NEAR, FAR = 128, 1024
"""Tokens. Context lengths at which forwards are measured, where they fit."""
BATCH = 8
"""Sequences of the forward that shows what a batch costs."""


class Point(NamedTuple):
    """A measured forward."""

    rows: int
    """Rows of each sequence."""
    is_far: bool = False
    """After FAR tokens of context, or as many as fit, and not after NEAR."""
    sequences: int = 1


POINTS = (
    Point(1),
    Point(2),
    Point(1, is_far=True),
    Point(4),
    Point(8),
    Point(16),
    Point(1, sequences=BATCH),
    Point(16, is_far=True),
    Point(12),
    Point(32),
    Point(64),
)
"""The measured forwards, most important first; the last are dropped when time runs out.

The cost curve bends after 12 rows, where the C forward begins to go over its weights
twice.
"""
WIDE = (64, 256)
"""Rows. Measured instead of the others when a forward is slow (offloaded weights)."""
TURNS = 12
"""Measurements of each point, at most, after the first."""
FAR_ROWS = 16
"""Rows of the widest forward after FAR tokens."""
PROMPT = 16
"""Tokens really read; the context is copies of their keys, which cost the same."""
STALE = 0.7
"""Share. A forward faster than this of its entry marks the table outdated."""
SHORT = 0.005
"""Seconds.

A shorter forward is timed after one alike, as in a text: its weights may be in the
caches, and a wider forward drives them out.
"""
PROBE_ID = -1
"""Id of the first measured sequence, and the highest; no request has one below 0."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a forward: a table interpolated linearly in the number of rows, and
    linear in the context length.

    Sequences of a batch share the weights, so their rows count together; each reads its
    own keys, so their contexts are summed. The measured rows are different tokens, so
    that they take as many experts of a mixture as a text does.
    """

    seconds: Mapping[int, float]
    """Seconds by number of rows of one sequence, after `context` tokens."""
    context: int
    per_token: float = 0.0
    """Seconds for each further token of context: reading its keys and values."""
    per_token_and_row: float = 0.0
    """The same for each row that attends to it: products."""
    per_sequence: float = 0.0
    """Seconds for each further sequence of a batch, besides its rows and context."""
    waited: float = 0.0
    """Seconds that threads waited for a core, in a second of the measurement."""

    def __post_init__(self) -> None:
        above = (*self.seconds, *self.seconds.values())
        least = (
            self.per_token,
            self.per_token_and_row,
            self.per_sequence,
            self.context,
        )
        if (
            not above
            or not all(map(math.isfinite, (*above, *least)))
            or min(above) <= 0
            or min(least) < 0
        ):
            raise ValueError(
                "a cost needs at least one number of rows, and finite seconds that are "
                "not negative"
            )

    def __call__(self, nodes: int, rows: int = 1, context: int | None = None) -> float:
        """Return the seconds of a forward: `nodes` drafts for each of `rows`."""
        context = self.context if context is None else context
        read = rows * (1 + nodes)
        points = sorted(self.seconds)
        table = [self.seconds[point] for point in points]
        base = interpolated(read, points, table)
        extra = self.per_token * (rows * context - self.context)
        extra += self.per_sequence * (rows - 1)
        return max(
            base + extra + self.per_token_and_row * read * (context - self.context),
            0.1 * base,
        )


def known(
    backend: Backend,
    vocab: int,
    context: int,
    about: Mapping[str, Any],
    folder: Path | None = None,
) -> Cost:
    """Return the cost that was cached on this machine under the key `about`; if there
    is none, measure it, and cache it unless other programs ran meanwhile.
    """
    key = {**machine(), "points": POINTS, **about}
    cached = CachedValues("costs", key, folder)
    cost = _restored(cached.read())
    if cost is None or _outdated(cost, Probe(backend, vocab, context)):
        from foreword.model.cost_table import BUSY, measured  # once on a machine

        cost = measured(backend, vocab, context)
        if cost.waited < BUSY:
            cached.write(asdict(cost))
    return cost


def _outdated(cost: Cost, probe: "Probe") -> bool:
    """Return whether the table is so slow that it was measured under load."""
    try:
        samples = [probe(Point(1)) for _ in range(2) if probe.fits(Point(1))]
    finally:
        probe.close()
    return bool(samples) and min(samples) < STALE * cost.seconds[min(cost.seconds)]


class Probe:
    """Sequences that are read only to time forwards."""

    def __init__(self, backend: Backend, vocab: int, context: int) -> None:
        self._backend, self._context = backend, context
        copies = self._copies = backend.copies
        self._tokens = [token % vocab for token in range(7, 7 + WIDE[-1])]
        self.near = min(NEAR if copies else PROMPT, context // 2)
        far = min(FAR, context - FAR_ROWS)
        self.far = far if copies and far >= 2 * self.near else 0
        self._prompt = min(PROMPT, self.near)
        self._opened: list[int] = []
        # tokens that stay, one a forward
        self._held = self._prompt
        growth = 0 if copies else 2 * (1 + TURNS) * len(POINTS)
        self._open(max(self.far, self.near), growth + WIDE[-1])

    def _open(self, context: int, room: int) -> None:
        """Open a sequence, and fill it with copies of the keys of its prompt."""
        sequence = PROBE_ID - len(self._opened)
        self._backend.open(sequence, context + room)
        self._opened.append(sequence)
        sources = self._sources()
        if sources is not None:
            self._backend.give(sequence, sources.probe_source)
        prompt = self._prompt
        self._backend.read([Read(sequence, 0, self._tokens[:prompt], keep=0)])
        if self._copies:
            source = list(islice(cycle(range(prompt)), context - prompt))
            self._backend.move(sequence, source, prompt)

    def _sources(self) -> "EncoderMemory | None":
        """Return what holds the sources of an encoder-decoder."""
        if not getattr(self._backend, "memories", True):
            return None  # nearly always
        from foreword.model.encoder import EncoderMemory

        return self._backend.memory(EncoderMemory)

    def close(self) -> None:
        """Free the sequences."""
        for sequence in self._opened:
            self._backend.close(sequence)

    def fits(self, point: Point) -> bool:
        """Return whether there is room for such a forward."""
        if not self._copies:
            # each forward adds a token to the context
            alone = point.sequences == 1 and not point.is_far
            return alone and self._held + point.rows <= self._context
        if point.sequences > 1 and self._sources() is not None:
            return False  # a source takes the id of another sequence below 0
        start = self.far if point.is_far else self.near
        return start > 0 and start + point.rows <= self._context

    def fits_all(self, points: Iterable[Point]) -> bool:
        """Return whether there is room for all these forwards, one after the other."""
        return all(
            self.fits(point._replace(rows=point.rows + 2 * at * (not self._copies)))
            for at, point in enumerate(points)
        )

    def __call__(self, point: Point) -> float:
        """Return the seconds of a forward; of a short one, right after one alike."""
        seconds = self._forward(point)
        return self._forward(point) if seconds < SHORT else seconds

    def _forward(self, point: Point) -> float:
        while len(self._opened) < point.sequences:
            self._open(self.near, 1)
        past = self.far if point.is_far else self.near
        # without rollback: go on by one token a forward, as if every draft token were
        # rejected
        if not self._copies:
            past, self._held = self._held, self._held + 1
        rows = point.rows
        reads = [
            Read(one, past, self._tokens[at : at + rows], keep=rows)
            for at, one in enumerate(self._opened[: point.sequences])
        ]
        before = perf_counter()
        logits = self._backend.read(reads)
        logits[0, 0].item()  # wait for the device
        return perf_counter() - before


def machine() -> dict[str, Any]:
    """Return the properties of this machine that the speed of a forward depends on."""
    return {
        "cpu": processor(),
        "threads": threads(),
        "torch": torch.__version__,
        "foreword": VERSION,
    }


def _restored(table: Mapping[str, Any] | None) -> Cost | None:
    """Return the cost of a cached table; None if it is damaged, or older."""
    if table is None or "waited" not in table:
        return None
    try:
        seconds = {int(rows): float(one) for rows, one in table["seconds"].items()}
        return Cost(**{**table, "seconds": seconds})
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
