"""Key-value pool of torch backends: one tensor of pages a layer."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.model.kv.pages import PagePool, PageTable, pages_for
from foreword.model.kv.prefixes import PAGE

BEYOND = 5
"""Pages kept free behind the last one given away, which padded keys may reach."""
FIRST = 16
"""Pages. Initial size of a pool of reserved pages."""
GROWTH = 32
"""The pool grows by one part in so many beyond the need: few rows are copied."""


class KVPool(PagePool):
    """Keys and values, [rows, heads, dim] a layer, allocated on first use with the
    shapes that the model writes.

    Rollback is only a smaller length on the caller's side: stale rows stay and are
    overwritten. Rows start as zeros and stay finite, so a masked stale row contributes
    exactly zero.
    """

    def __init__(self, *, adjacent: bool = False) -> None:
        super().__init__(adjacent=adjacent)
        self.rows = 0
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def resize(self, count: int) -> None:
        beyond = 0 if self.adjacent else BEYOND
        if (count + beyond) * PAGE <= self.rows:
            return
        # Recordings of forwards (executors/cuda) end when the pool moves, so a pool of
        # reserved pages grows seldom.
        count = (
            max(count, 2 * self.count, FIRST)
            if self.adjacent
            else count + max(count // GROWTH, 1) + beyond
        )
        self.stretch(count * PAGE)

    def stretch(self, rows: int) -> None:
        """Grow to this many rows; existing rows keep their contents."""
        self.rows = rows
        for index, (keys, values) in self._layers.items():
            self._layers[index] = (grown(keys, self.rows), grown(values, self.rows))

    def write(
        self,
        layer: int,
        key: Float[Tensor, "rows heads dim"],
        value: Float[Tensor, "rows heads value_dim"],
        rows: Int[Tensor, "written"],
    ) -> tuple[Float[Tensor, "pool heads dim"], Float[Tensor, "pool heads value_dim"]]:
        """Write the new keys and values of a layer; return all its keys and values."""
        if layer not in self._layers:
            self._layers[layer] = (
                key.new_zeros(self.rows, *key.shape[1:]),
                value.new_zeros(self.rows, *value.shape[1:]),
            )
        keys, values = self._layers[layer]
        keys[rows] = key[: rows.numel()]
        values[rows] = value[: rows.numel()]
        return keys, values

    def layer(
        self, layer: int
    ) -> tuple[Float[Tensor, "pool heads dim"], Float[Tensor, "pool heads value_dim"]]:
        """Return all keys and values of a layer that has been written."""
        return self._layers[layer]

    def where(self, table: PageTable, length: int, padded: int) -> slice | list[int]:
        """Return the pool rows of a sequence's `length` rows, padded to `padded`, as
        `taken` takes them.

        Adjacent pages are a slice of the pool, and so are the rows beyond them, which
        may be anything. Other pages are listed, and the last page is repeated beyond
        them.
        """
        count = pages_for(length)
        if table.run >= count and table.start + padded <= self.rows:
            return slice(table.start, table.start + padded)
        repeated = [table.pages[count - 1]] * (pages_for(padded) - count)
        return [*table.pages[:count], *repeated]

    @torch.inference_mode()
    def move(self, source: Int[Tensor, "rows"], target: Int[Tensor, "rows"]) -> None:
        """Copy rows (an accepted branch) to the end of the text, in every layer."""
        for keys, values in self._layers.values():
            keys[target] = keys[source]
            values[target] = values[source]

    @torch.inference_mode()
    def copy(self, source: int, target: int) -> None:
        old, new = (slice(page * PAGE, (page + 1) * PAGE) for page in (source, target))
        for keys, values in self._layers.values():
            keys[new] = keys[old]
            values[new] = values[old]


def taken(
    rows: Float[Tensor, "pool heads dim"], where: slice | list[int]
) -> Float[Tensor, "padded heads dim"]:
    """Return the rows at `KVPool.where`, without a copy if they are adjacent."""
    if isinstance(where, slice):
        return rows[where]
    pages = rows.unflatten(0, (-1, PAGE))
    return pages[torch.tensor(where, device=rows.device)].flatten(0, 1)


def grown(tensor: Tensor, rows: int) -> Tensor:
    """Return the tensor padded with zeros to `rows` in its first dimension."""
    return torch.cat(
        [tensor, tensor.new_zeros(rows - tensor.shape[0], *tensor.shape[1:])]
    )
