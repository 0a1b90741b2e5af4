"""Pages are taken as a text grows, shared by like beginnings, never lost."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from foreword.model.executors.torch.kv_pool import KVPool
from foreword.model.kv.pages import PagePool, pages_for, whole
from foreword.model.kv.prefixes import PAGE

FEW = 6
"""Token ids, so few that texts begin alike."""
texts = st.tuples(st.integers(0, 2), st.integers(1, 4 * PAGE))
"""What a text begins with, and its tokens."""
kinds = st.sampled_from(["open", "read", "back", "close"])
step = st.tuples(kinds, st.integers(0, 2), texts)
steps = st.lists(step, min_size=3, max_size=30)


def tokens_of(kind: int, length: int) -> list[int]:
    return [(kind * place // PAGE) % FEW for place in range(length)]


class Written(PagePool):
    """A pool that remembers what was written into each row: the text up to there."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, tuple[int, ...]] = {}

    def copy(self, source: int, target: int) -> None:
        for row in range(PAGE):
            self.rows[target * PAGE + row] = self.rows.get(source * PAGE + row, ())

    def read(self, id: int, start: int, text: list[int], final: int) -> None:
        table = self.extend(id, start, len(text))
        for position, row in enumerate(table.rows(start, len(text)), start):
            assert row == table.row(position)
            self.rows[row] = tuple(text[: position + 1])
        self.note(id, start, text[start:], len(text) - start, final)

    def holds(self, id: int, text: list[int]) -> bool:
        found = [self.rows[self[id].row(place)] for place in range(len(text))]
        return found == [tuple(text[: place + 1]) for place in range(len(text))]


@given(steps, st.none() | st.integers(1, 12))
def test_every_text_finds_its_own_rows_whatever_others_do(steps, most):
    pool, held = Written(), dict[int, list[int]]()
    pool.limit = None if most is None else most * PAGE
    for what, name, (kind, length) in steps:
        text = tokens_of(kind, length)
        if what == "open" or name not in held:
            found = pool.open(name, 4 * PAGE, text)
            assert found % PAGE == 0
            assert found < len(text)
            held[name] = text[:found]
        elif what == "close":
            pool.close(name)
            del held[name]
        else:
            # rows may be given up, and read again
            start = len(held[name]) if what == "read" else len(held[name]) // 2
            further = [(token + (what == "back")) % FEW for token in text]
            held[name] = (held[name][:start] + further)[: 4 * PAGE]
            more = len(held[name]) - start
            if more > 0:
                pool.read(name, start, held[name], final=max(0, more - length % 5))
        assert all(pool.holds(one, text) for one, text in held.items())
        pages = [page for one in held for page in pool[one].pages]
        # a page that several texts use counts once
        assert pool.used == PAGE * len(set(pages))
        assert pool.used <= pool.held <= PAGE * pool.count
        assert pool.limit is None or pool.held <= max(pool.limit, pool.used)
        assert sorted(set(pool._free)) == pool._free
        assert not set(pool._free) & set(pages)
    for name in list(held):
        pool.close(name)
    while pool.prefixes.evict() is not None:
        pool.count -= 1
    assert len(pool._free) == pool.count, "every page came back"
    assert pool.prefixes._roots == {}


def filled(pool: PagePool, id: int, text: list[int], tenant: str = "") -> int:
    """Open a sequence and read the rest of its text; return the tokens held."""
    found = pool.open(id, len(text) + 1, text, tenant)
    pool.extend(id, found, len(text))
    pool.note(id, found, text[found:], len(text) - found, len(text) - found)
    return found


def test_longest_prefix_in_whole_pages_is_found():
    pool, text = PagePool(), list(range(3 * PAGE))
    assert filled(pool, 1, text) == 0
    # not the last page: its last token must be read for its logits
    assert filled(pool, 2, text) == 2 * PAGE
    assert filled(pool, 3, [*text, 7]) == 3 * PAGE
    assert filled(pool, 4, [*text[:100], *text]) == PAGE
    assert filled(pool, 5, text, tenant="another") == 0
    assert filled(pool, 6, text, tenant="another") == 2 * PAGE
    assert pool.prefixes.queries == 5 * len(text) + 1 + len(text) + 100
    assert pool.prefixes.hits == 8 * PAGE


def test_text_going_back_into_a_shared_page_copies_it():
    pool, text = Written(), list(range(2 * PAGE + 9))
    for name in (1, 2):
        start = pool.open(name, 4 * PAGE, text)
        pool.read(name, start, text, len(text) - start)
    assert pool[1].pages[:2] == pool[2].pages[:2]
    other = [*text[:100], *[7] * 60]
    pool.read(2, 100, other, 60)
    assert pool[1].pages[0] == pool[2].pages[0]
    assert pool[1].pages[1] != pool[2].pages[1]
    assert pool.holds(1, text)
    assert pool.holds(2, other)
    third = [*text[:70], *other]
    for wanted, held in ((text, 2 * PAGE), (other, 2 * PAGE), (third, PAGE)):
        assert pool.open(3, 4 * PAGE, wanted) == held
        assert pool.holds(3, wanted[:held])


def test_rows_that_do_not_follow_each_other_are_no_text():
    pool, text = PagePool(), list(range(PAGE - 3))
    filled(pool, 1, text)
    pool.extend(1, len(text), PAGE + 1)
    # the third token belongs to another branch
    pool.note(1, len(text), [7, 8, 9, 5], 2, 4)
    pool.note(1, PAGE + 1, [1], 1, 1)
    pool.close(1)
    assert pool.open(2, 2 * PAGE, [*text, 7, 8, 9, 5]) == 0
    pool.close(2)
    filled(pool, 3, [*text, 7, 8])
    # this row is written by a guest, who notes nothing
    pool.extend(3, PAGE - 2, PAGE + 1)
    pool.note(3, PAGE, [5], 1, 1)
    pool.close(3)
    assert pool.open(4, 2 * PAGE, [*text, 7, 8, 9, 5]) == 0
    filled(pool, 5, [*text, 7, 8])
    pool.extend(5, len(text), PAGE)
    pool.note(5, len(text), [7, 8, 9], 3, 3)  # after that, it is read again
    pool.close(5)
    assert pool.open(4, 2 * PAGE, [*text, 7, 8, 9, 5]) == PAGE


def test_pages_of_ended_texts_go_oldest_first():
    pool = PagePool()
    pool.limit = 4 * PAGE
    for name, text in enumerate(([1] * 2 * PAGE, [2] * 2 * PAGE)):
        filled(pool, name, text)
        pool.close(name)
    assert (pool.used, pool.held) == (0, 4 * PAGE)
    # used again, so the other is older now; takes one page
    assert filled(pool, 3, [1] * (2 * PAGE + 1)) == 2 * PAGE
    assert pool.held == 4 * PAGE
    # the end of a text goes before its beginning
    assert filled(pool, 4, [2] * (2 * PAGE + 1)) == PAGE


def test_open_sequences_get_pages_beyond_the_limit():
    pool = PagePool()
    pool.limit = PAGE
    assert filled(pool, 1, [1] * 3 * PAGE) == 0
    assert pool.used == 3 * PAGE
    pool.close(1)
    assert pool.held == PAGE


def test_weights_that_changed_make_every_text_unknown():
    pool = PagePool()
    filled(pool, 1, [1] * 2 * PAGE)
    pool.prefixes.clear()
    assert filled(pool, 2, [1] * 2 * PAGE) == 0
    pool.close(1)
    # of the second, which was read since
    assert filled(pool, 3, [1] * 2 * PAGE) == PAGE


def test_only_the_moved_branch_is_part_of_the_text():
    pool = PagePool()
    text = list(range(PAGE - 2))
    filled(pool, 1, text)
    pool.extend(1, len(text), len(text) + 4)
    # after the first, the second branch: rows 0 and 2
    pool.note(1, len(text), [7, 8, 9, 5], 1, 0)
    pool.moves(1, [len(text), len(text) + 2], len(text))
    pool.close(1)
    assert pool.open(2, 2 * PAGE, [*text, 7, 8, 1]) == 0
    assert pool.open(3, 2 * PAGE, [*text, 7, 9, 1]) == PAGE


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 700)), max_size=40))
def test_reserved_pages_are_adjacent_and_come_back(steps):
    pool, opened = PagePool(adjacent=True), []
    for number, (take, size) in enumerate(steps):
        if take or not opened:
            assert pool.open(number, size, [1] * size) == 0
            assert pool[number].run == len(pool[number].pages) == whole(size) // PAGE
            opened.append(number)
        else:
            pool.close(opened.pop(size % len(opened)))
        pages = [page for one in opened for page in pool[one].pages]
        assert len(set(pages)) == len(pages)
    for one in opened:
        pool.close(one)
    assert pool._free == list(range(pool.count))


@given(st.integers(1, 3000), st.integers(0, 3000))
def test_padded_lengths(rows, fewer):
    assert rows <= whole(rows) == whole(whole(rows)) < rows + 5 * PAGE
    assert whole(rows) % PAGE == 0
    assert whole(max(1, rows - fewer)) <= whole(rows)


def test_text_grows_into_adjacent_and_free_pages():
    pool = PagePool()
    pool.open(1, 9 * PAGE)
    pool.open(2, 9 * PAGE)
    pool.extend(1, 0, 2 * PAGE)
    pool.extend(2, 0, PAGE)
    pool.close(1)
    pool.extend(2, PAGE, 2 * PAGE)
    assert list(pool[2].pages) == [2, 0]
    pool.open(3, 9 * PAGE)
    pool.extend(3, 0, 2 * PAGE)
    assert pool.count == 4
    pool.close(2)
    pool.open(4, 9 * PAGE)
    assert list(pool.extend(4, 0, 1).pages) == [0]
    assert pool.count == 4


NOWHERE = torch.tensor([], dtype=torch.int64)


def written(pool: KVPool, rows: list[int], *, layer: int = 0):
    # one row of padding, not written
    key, value = torch.randn(len(rows) + 1, 2, 4), torch.randn(len(rows) + 1, 2, 3)
    pool.write(layer, key, value, torch.tensor(rows))
    return key[:-1], value[:-1]


def test_growing_moves_no_row_and_new_rows_are_finite():
    pool = KVPool()
    pool.open(1, 40 * PAGE)
    pool.extend(1, 0, 10)
    key, value = written(pool, [3, 9, 5])
    last = pool.extend(1, 10, 40 * PAGE).row(39 * PAGE)
    late, _ = written(pool, [last])
    keys, values = pool.write(0, late[:0], value[:0], NOWHERE)
    assert torch.equal(keys[[3, 9, 5]], key)
    assert torch.equal(values[[3, 9, 5]], value)
    assert torch.equal(keys[[last]], late)
    assert not keys[[0, 1, 2, 4, 63]].any()
    assert keys.shape[0] == values.shape[0] == pool.rows


def test_accepted_branch_is_moved_in_every_layer():
    pool = KVPool()
    pool.open(1, PAGE)
    pool.extend(1, 0, 10)
    before = [written(pool, list(range(10)), layer=layer) for layer in range(3)]
    pool.move(torch.tensor([4, 5, 8]), torch.tensor([3, 4, 5]))
    for layer, (key, value) in enumerate(before):
        keys, values = pool.write(layer, key[:0], value[:0], NOWHERE)
        assert torch.equal(keys[3:6], key[[4, 5, 8]])
        assert torch.equal(values[3:6], value[[4, 5, 8]])
        assert torch.equal(keys[:3], key[:3])


def test_pages_for_rows():
    assert [pages_for(rows) for rows in (0, 1, PAGE, PAGE + 1)] == [0, 1, 1, 2]
