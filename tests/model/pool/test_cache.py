"""Runs of rows never overlap, are never lost, and keep what is written in them."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from foreword.model.pool.kv_pool import PAGE, KVPool, Slot, SlotPool, whole


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 700)), max_size=40))
def test_runs_are_disjoint_whole_pages_and_come_back(steps):
    extents, held = SlotPool(rows=256), []
    for take, size in steps:
        if take or not held:
            run = extents.reserve(size)
            assert size <= run.capacity == whole(size)
            assert run.start % PAGE == run.capacity % PAGE == 0
            assert run.start >= 0
            assert run.stop <= extents.rows
            assert all(run.stop <= other.start or other.stop <= run.start for other in held)
            held.append(run)
        else:
            extents.release(held.pop(size % len(held)))
    for run in held:
        extents.release(run)
    assert extents._free == [Slot(0, extents.rows)], "all gaps must have joined into one"


@given(st.integers(1, 3000), st.integers(0, 3000))
def test_a_run_holds_the_padded_keys_of_every_text_that_fits(rows, fewer):
    assert rows <= whole(rows) == whole(whole(rows)) < rows + 5 * PAGE
    assert whole(rows) % PAGE == 0
    assert whole(max(1, rows - fewer)) <= whole(rows)


def test_a_gap_is_used_again_before_the_pool_grows():
    extents = SlotPool(rows=4 * PAGE)
    first = extents.reserve(PAGE)
    extents.reserve(2 * PAGE)
    extents.release(first)
    assert extents.reserve(1).start == first.start
    assert extents.rows == 4 * PAGE


def written(pool: KVPool, rows: list[int], *, layer: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    key, value = torch.randn(len(rows) + 1, 2, 4), torch.randn(len(rows) + 1, 2, 3)  # one row of padding, not written
    pool.write(layer, key, value, torch.tensor(rows))
    return key[:-1], value[:-1]


def test_growing_moves_no_row_and_new_rows_are_finite():
    pool = KVPool(rows=PAGE)
    key, value = written(pool, [3, 9, 5])
    pool.reserve(PAGE)
    run = pool.reserve(5 * PAGE)
    late, _ = written(pool, [run.start])
    keys, values = pool.write(0, late[:0], value[:0], torch.tensor([], dtype=torch.int64))
    assert torch.equal(keys[[3, 9, 5]], key)
    assert torch.equal(values[[3, 9, 5]], value)
    assert torch.equal(keys[[run.start]], late)
    assert not keys[[0, 1, 2, 4, 63]].any()
    assert keys.shape[0] == values.shape[0] == pool.rows


def test_an_accepted_branch_is_moved_in_every_layer_also_onto_itself():
    pool = KVPool(rows=PAGE)
    before = [written(pool, list(range(10)), layer=layer) for layer in range(3)]
    pool.move(torch.tensor([4, 5, 8]), torch.tensor([3, 4, 5]))
    for layer, (key, value) in enumerate(before):
        keys, values = pool.write(layer, key[:0], value[:0], torch.tensor([], dtype=torch.int64))
        assert torch.equal(keys[3:6], key[[4, 5, 8]])
        assert torch.equal(values[3:6], value[[4, 5, 8]])
        assert torch.equal(keys[:3], key[:3])


def test_the_memory_held_is_counted():
    pool = KVPool(rows=PAGE)
    assert pool.bytes == 0
    written(pool, [0])
    assert pool.bytes == PAGE * 2 * (4 + 3) * 4
