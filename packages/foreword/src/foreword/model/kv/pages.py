"""Key-value page allocator: texts take pages as they grow, and share prefix pages."""

from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.errors import ModelError
from foreword.model.kv.prefixes import PAGE, Prefix, PrefixTree

if TYPE_CHECKING:
    from foreword.model.kv.early import EarlyRows


def pages_for(rows: int) -> int:
    """Return the number of pages that hold so many rows."""
    return -(-rows // PAGE)


def whole(rows: int) -> int:
    """Return `rows` rounded up to a length over which a product sums in the same order
    as over any longer one.

    torch's fused attention takes keys in blocks of 512 and a remainder. The matrix
    product under it (MKL, float32) sums up to 192 or 384 keys at once, by processor,
    and splits more than that by its own rules. So the remainder is at most 192, in
    whole pages, or it is rounded up to 512. tests/model/pool/test_attention.py fails
    where that is not enough.
    """
    rows = pages_for(rows) * PAGE
    over = rows % 512
    return rows - over + 512 if over > 192 else rows


@dataclass(slots=True, eq=False)
class PageTable:
    """The pages of one sequence, in order of rows, and the text that they hold."""

    capacity: int
    """Most rows."""
    pages: "array[int]" = field(default_factory=lambda: array("q"))
    run: int = 0
    """Leading pages that are adjacent in the pool."""
    tokens: list[int] | None = None
    """Token id of each row, draft tokens too; None if the pages must not be shared."""
    chain: int = 0
    """Number of leading rows that form a chain, without tree branches."""
    path: list[Prefix] = field(default_factory=list)
    """The root of the tenant, then the leading pages that are in the tree."""
    hidden: list[Tensor] = field(default_factory=list)
    """Hidden states of rows whose page is not in the tree yet."""
    hidden_rows: tuple[int, int] = (0, 0)
    """The first of these rows, and the one after the last."""

    @property
    def start(self) -> int:
        """Return the row of the pool where a sequence with adjacent pages begins."""
        return self.pages[0] * PAGE

    def row(self, position: int) -> int:
        """Return the row of the pool that holds a row of the sequence."""
        return self.pages[position // PAGE] * PAGE + position % PAGE

    def rows(self, start: int, stop: int) -> list[int]:
        """Return the rows of the pool that hold these rows of the sequence."""
        rows: list[int] = []
        for number in range(start // PAGE, pages_for(stop)):
            first, base = number * PAGE, self.pages[number] * PAGE
            rows += range(base + max(start - first, 0), base + min(stop - first, PAGE))
        return rows

    def put(self, number: int, pages: Sequence[int]) -> None:
        """Set the pages from the index on; append those beyond the end."""
        self.pages[number : number + len(pages)] = array("q", pages)
        self.run = min(self.run, number)
        while (
            self.run < len(self.pages)
            and self.pages[self.run] == self.pages[0] + self.run
        ):
            self.run += 1


class PagePool:
    """An allocator of pages; subclasses hold the rows themselves. It grows when no page
    is free.

    Pages of texts that ended stay, to be used again, as long as the pool has room for
    them: `limit`. Open sequences get pages beyond it: to keep it, the engine preempts
    sequences in time.
    """

    row_bytes = 0
    """Bytes of the keys and values of one row, where the layout is known."""

    def __init__(self, *, adjacent: bool = False) -> None:
        """`adjacent`: pages are adjacent, reserved at the start, never used again."""
        self.adjacent = adjacent
        self.limit: int | None = None
        """Tokens. None = no limit."""
        self.spare = 0
        """Rows added to every sequence's capacity, for a drafter in the same pool."""
        self.count = 0
        """Pages that exist."""
        self.prefixes = PrefixTree()
        self.early: WeakSet[EarlyRows] = WeakSet()
        """Rows that views have run through the first layers only."""
        self._free: list[int] = []  # sorted
        self._tables: dict[int, PageTable] = {}

    def __getitem__(self, id: int) -> PageTable:
        """Return the pages of an open sequence."""
        return self._tables[id]

    # ---- counts, in tokens

    @property
    def held(self) -> int:
        """Tokens that fit into the pages of open sequences and of kept texts."""
        return (self.count - len(self._free)) * PAGE

    @property
    def used(self) -> int:
        """Tokens that fit into the pages of open sequences."""
        return self.held - len(self.prefixes) * PAGE

    def room(self, rows: int) -> int:
        """Return the tokens of the pages that a sequence of so many rows takes."""
        return whole(rows + self.spare) if self.adjacent else PAGE * pages_for(rows)

    def lacking(self, id: int, rows: int) -> int:
        """Return the tokens of further pages that a sequence needs for `rows` rows."""
        table = self._tables.get(id)
        return PAGE * max(
            0, pages_for(rows) - (0 if table is None else len(table.pages))
        )

    # ---- sequences

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        """Begin a sequence of at most `capacity` rows; return how many of its first
        tokens are held already.

        With `tokens`, its text so far, later texts that begin alike may share its
        pages. With `layers`, pages are used only where the hidden states after these
        layers are kept.
        """
        self.close(id)
        table = self._tables[id] = PageTable(whole(capacity + self.spare))
        if self.adjacent:
            table.put(0, self._take(table.capacity // PAGE))
        elif tokens:
            table.path = self.prefixes.enter(tokens, tenant, layers)
            table.put(0, [prefix.page for prefix in table.path[1:]])
            table.chain = len(table.pages) * PAGE
            table.tokens = list(tokens[: table.chain])
            table.hidden_rows = table.chain, table.chain
        return table.chain

    def close(self, id: int) -> None:
        """End a sequence and keep its text if there is room. Ignores unknown ids."""
        if self.early:
            self._drop_early(id)
        table = self._tables.pop(id, None)
        if table is None:
            return
        self._publish(table, table.chain)
        self.prefixes.leave(table.path)
        for page in table.pages[max(len(table.path) - 1, 0) :]:
            insort(self._free, page)
        self._evict(0)

    @property
    def is_full(self) -> bool:
        """Whether one more page would exceed the limit."""
        return self.limit is not None and self.held + PAGE > self.limit

    def reserve(self) -> int:
        """Take one page for good and return its number."""
        return self._take(1)[0]

    def check(self, id: int, stop: int) -> None:
        """Raise ModelError if a sequence may not have so many rows."""
        if stop > (capacity := self._tables[id].capacity):
            raise ModelError(
                f"cannot read sequence {id}: it exceeds its capacity of {capacity} "
                "tokens"
            )

    def extend(self, id: int, start: int, stop: int) -> PageTable:
        """Return a sequence's pages, `start` to `stop` writable; forget its text."""
        if self.early:
            self._drop_early(id, start)
        table = self.own(id, start, stop)
        if table.tokens is not None:
            del table.tokens[start:]
            table.chain = min(table.chain, start)
        return table

    def own(self, id: int, start: int, stop: int) -> PageTable:
        """Return pages for `stop` rows; those with rows from `start` on are its own."""
        table, number = self._tables[id], start // PAGE
        if shared := table.path[number + 1 :]:
            pages = self._take(len(shared))
            for prefix, page in zip(shared, pages, strict=True):
                self.copy(prefix.page, page)
            table.put(number, pages)
            del table.path[number + 1 :]
            self.prefixes.let_go(shared)
        more = pages_for(stop) - len(table.pages)
        if more > 0:
            following = table.pages[-1] + 1 if table.pages else 0
            table.put(len(table.pages), self._take(more, following))
        return table

    def note(
        self, id: int, start: int, tokens: Sequence[int], chain: int, final: int
    ) -> None:
        """Note what was read into the rows from `start` on.

        The first `chain` of the tokens each follow the one before, and the first
        `final` will not be dropped.
        """
        table = self._tables[id]
        if table.tokens is None or start > len(table.tokens):
            return
        table.tokens[start:] = tokens
        if table.chain == start:
            table.chain += chain
        self._publish(table, min(table.chain, start + final))

    def moves(
        self, id: int, source: Sequence[int], start: int
    ) -> list[tuple[int, int]]:
        """Note that the rows `source`, which make up a text, are copied to the rows
        from `start` on; return the (source, target) rows of the pool, in order, without
        rows that stay.
        """
        if not source:
            return []
        if self.early:
            self._drop_early(id, start)
        table = self.own(id, start, start + len(source))
        if table.tokens is not None and max(source) < len(table.tokens):
            table.tokens[start:] = [table.tokens[row] for row in source]
            table.chain = start + len(source) if table.chain >= start else table.chain
        return [
            (table.row(row), table.row(target))
            for target, row in enumerate(source, start)
            if row != target
        ]

    # ---- hidden states

    def keep_hidden(
        self,
        id: int,
        start: int,
        hidden: Float[Tensor, "tokens features"],
        layers: Sequence[int],
    ) -> None:
        """Keep hidden states of committed tokens, from row `start` on, with the pages
        of these tokens.

        They wait here until the page is in the tree. States of a closed sequence, or
        after a gap, are ignored.
        """
        table = self._tables.get(id)
        if table is None or table.tokens is None or start != table.hidden_rows[1]:
            return
        first, stop = table.hidden_rows[0], start + len(hidden)
        table.hidden.append(hidden)
        ready = table.path[first // PAGE + 1 : stop // PAGE + 1]
        if ready:
            rows = torch.cat(table.hidden)
            for prefix, page in zip(ready, rows.split(PAGE), strict=False):
                by_layer = zip(layers, page.chunk(len(layers), 1), strict=True)
                for layer, states in by_layer:
                    prefix.hidden[layer] = states.clone()
            table.hidden = [rows[PAGE * len(ready) :].clone()]
            first = first + PAGE * len(ready)
        table.hidden_rows = first, stop

    def hidden(
        self, id: int, layers: Sequence[int]
    ) -> Float[Tensor, "tokens features"]:
        """Return the stored hidden states after `layers` of tokens not to be read."""
        pages: list[Tensor] = []
        for prefix in self._tables[id].path[1:]:
            states = [prefix.hidden[layer] for layer in layers]
            pages.append(torch.cat(states, 1))
        return torch.cat(pages)

    # ---- pages

    def resize(self, count: int) -> None:
        """Grow to this many pages; existing rows keep their contents."""

    def copy(self, source: int, target: int) -> None:
        """Copy a page to another."""

    def _drop_early(self, id: int, start: int = 0) -> None:
        """Forget the early rows of a sequence from `start` on."""
        for early in self.early:
            early.drop(id, start)

    def _publish(self, table: PageTable, rows: int) -> None:
        """Put the full pages of a text's first `rows` rows into the tree, if new."""
        if table.tokens is None:
            return
        for number in range(len(table.path) - 1, rows // PAGE):
            page = table.pages[number]
            tokens = table.tokens[number * PAGE : (number + 1) * PAGE]
            prefix = self.prefixes.add(table.path[-1], tokens, page)
            table.path.append(prefix)
            if prefix.page != page:  # another sequence has read the same text
                table.put(number, [prefix.page])
                insort(self._free, page)

    def _take(self, count: int, first: int = 0) -> list[int]:
        """Take free pages: from `first` on if free, else adjacent ones if there are."""
        self._evict(count)
        free = self._free
        at = bisect_left(free, first)
        if free[at : at + count] != list(range(first, first + count)):
            # `free` is sorted: numbers whose ends are this far apart are adjacent
            starts = range(len(free) - count + 1)
            runs = (i for i in starts if free[i + count - 1] - free[i] == count - 1)
            at = next(runs, -1)
        if at < 0:
            usable = self._last_run() if self.adjacent else len(free)
            more = count - usable
            if more > 0:
                self.resize(self.count + more)
                free += range(self.count, self.count + more)
                self.count += more
            at = len(free) - count if self.adjacent else 0
        taken = free[at : at + count]
        del free[at : at + count]
        return taken

    def _last_run(self) -> int:
        """Return the number of free pages at the end of the pool."""
        run = 0
        while run < len(self._free) and self._free[-1 - run] == self.count - 1 - run:
            run += 1
        return run

    def _evict(self, count: int) -> None:
        """Drop the oldest kept texts until `count` more pages fit the limit."""
        while self.limit is not None and self.held + count * PAGE > self.limit:
            page = self.prefixes.evict()
            if page is None:
                break
            insort(self._free, page)
