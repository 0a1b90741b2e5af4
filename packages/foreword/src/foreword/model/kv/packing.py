"""`Paged`, the base of executors whose sequences have pages of a pool."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from foreword.model.kv.memories import Remembers
from foreword.model.kv.pages import PagePool
from foreword.model.kv.reads import Reach, Read, SourceKeys, Span

if TYPE_CHECKING:
    from foreword.model.kv.early import EarlyRows

Pool = TypeVar("Pool", bound=PagePool)


class Paged(Remembers, Generic[Pool]):
    """Base that gives sequences pages of a pool and lays reads out in it."""

    copies = True
    guest = False
    """Whether another executor owns the pool: rows written here are not reused."""

    def __init__(self, pool: Pool, memories: Sequence[Any] = ()) -> None:
        """`memories`: what is remembered of each sequence beside keys and values."""
        self.pool = pool
        self.memories = tuple(memories)

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        """Begin a sequence of at most `capacity` tokens, drafts included."""
        if not self.memories:
            return self.pool.open(id, capacity, tokens, tenant, layers)
        if not all(memory.shares_prefixes for memory in self.memories):
            tokens = ()
        for memory in self.memories:
            memory.opening(self.pool, id, tokens, tenant)
        held = self.pool.open(id, capacity, tokens, tenant, layers)
        for memory in self.memories:
            memory.opened(self.pool, id, tokens[:held])
        return held

    def close(self, id: int) -> None:
        """Free a sequence. Unknown ids are ignored."""
        self.pool.close(id)
        for memory in self.memories:
            memory.close(self.pool, id)

    def _early(self, reads: Sequence[Read]) -> "EarlyRows | None":
        """Return where a view has run some reads' first layers; None nearly always."""
        if self.guest:
            return None
        return next((rows for rows in self.pool.early if rows.holds(reads)), None)

    def _spans(self, reads: Sequence[Read], beyond: int = 0) -> tuple[Span, ...]:
        """Return the spans of the reads, with room for `beyond` more rows after each.

        Raises ModelError where a sequence exceeds its capacity, before any page is
        taken for them.
        """
        stops = [read.start + len(read.tokens) + beyond for read in reads]
        for read, stop in zip(reads, stops, strict=True):
            for memory in self.memories:
                memory.check(read)
            self.pool.check(read.id, stop)
        spans: list[Span] = []
        for read, stop in zip(reads, stops, strict=True):
            first = spans[-1].stop if spans else 0
            last = first + len(read.tokens)
            table = self.pool.extend(read.id, read.start, stop)
            if self.memories:
                source, reach = self._beside(read.id)
                spans.append(Span(first, last, table, read, source, reach))
            else:
                spans.append(Span(first, last, table, read))
        return tuple(spans)

    def _beside(self, id: int) -> tuple[SourceKeys | None, Reach]:
        """Return a sequence's source, and the ranges of rows with a full mask."""
        source: SourceKeys | None = None
        reach: Reach = {}
        for memory in self.memories:
            source = memory.source(id) or source
            reach = memory.reach(id) or reach
        return source, reach

    def _note(self, reads: Sequence[Read]) -> None:
        """Note that these were read, so that texts that begin alike can use them."""
        if not self.guest:
            for read in reads:
                final = len(read.tokens) - read.drafted
                self.pool.note(
                    read.id, read.start, self._keys(read), read.linked, final
                )
        for memory in self.memories:
            memory.noted(self.pool, reads)

    def _keys(self, read: Read) -> list[int]:
        """Return the tokens of a read as later texts are compared with them."""
        for memory in self.memories:
            keys = memory.keys(read)
            if keys is not None:
                return keys
        return read.tokens
