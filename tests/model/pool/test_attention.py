"""Attention over the pool equals the definition, with the same bits in any batch."""

import pytest
import torch
from torch import nn

from foreword.errors import ModelError
from foreword.model.executors.torch.attention import attend
from foreword.model.executors.torch.kv_pool import KVPool
from foreword.model.executors.torch.plan import Plan
from foreword.model.kv.reads import Read, Span
from layers import keys_of

DTYPES = [torch.float32, torch.bfloat16]
SHAPES = {
    "one head a group": dict(heads=4, kv_heads=4, dim=16, value_dim=16),
    "grouped heads": dict(heads=6, kv_heads=2, dim=64, value_dim=64),
    "one key head": dict(heads=8, kv_heads=1, dim=32, value_dim=32),
    "narrow values": dict(heads=4, kv_heads=2, dim=24, value_dim=16),
}


def module(layer_idx: int) -> nn.Module:
    made = nn.Module()
    made.layer_idx = layer_idx
    return made


class Text:
    """Queries, keys and values of one text; branches are rows like any other."""

    def __init__(
        self, length: int, shape: dict[str, int], dtype: torch.dtype, seed: int
    ) -> None:
        rng = torch.Generator().manual_seed(seed)
        heads, kv_heads, dim, value_dim = shape.values()

        def drawn(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=rng).to(dtype)

        self.query = drawn(heads, length, dim)
        self.key = drawn(kv_heads, length, dim)
        self.value = drawn(kv_heads, length, value_dim)
        self.capacity = length + 64


class Layer:
    """One attention layer over a pool of its own."""

    def __init__(self, **options: object) -> None:
        self.pool, self.options = KVPool(), options
        self.opened: set[int] = set()

    def read(self, *parts: tuple[Text, Read]) -> list[torch.Tensor]:
        """One packed forward; the rows of each part, [rows, heads, value_dim]."""
        spans, rows, start = [], [], 0
        for text, read in parts:
            if read.id not in self.opened:
                self.pool.open(read.id, text.capacity)
                self.opened.add(read.id)
            stop, end = start + len(read.tokens), read.start + len(read.tokens)
            table = self.pool.extend(read.id, read.start, end)
            spans.append(Span(start, stop, table, read))
            rows += table.rows(read.start, end)
            start = stop
        packed = [
            torch.cat([getattr(t, name)[:, r.tokens] for t, r in parts], 1)[None]
            for name in FIELDS
        ]
        plan = Plan(self.pool, tuple(spans), torch.tensor(rows))
        out, _ = attend(module(layer_idx=0), *packed, None, plan=plan, **self.options)
        return [out[0, one.start : one.stop].clone() for one in spans]


FIELDS = ("query", "key", "value")


def defined(
    text: Text, visible: torch.Tensor, *, softcap=None, s_aux=None, scaling=None
) -> torch.Tensor:
    """Attention in float64, [rows, heads, value_dim]. visible: [rows, keys]."""
    query, key, value = (getattr(text, name).double() for name in FIELDS)
    groups = query.shape[0] // key.shape[0]
    key, value = key.repeat_interleave(groups, 0), value.repeat_interleave(groups, 0)
    scores = (
        query
        @ key.transpose(-1, -2)
        * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    )
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~visible, -torch.inf)
    if s_aux is not None:
        scores = torch.cat(
            [scores, s_aux.double()[:, None, None].expand(-1, scores.shape[1], 1)], -1
        )
    return (scores.softmax(-1)[..., : key.shape[1]] @ value).transpose(0, 1)


VARIANTS = {
    "plain": {},
    "scaled": dict(scaling=0.3),
    "softcap": dict(softcap=1.5),
    "window": dict(sliding_window=5),
    "sinks": dict(s_aux=True),
    "everything": dict(softcap=2.0, s_aux=True, sliding_window=7, scaling=0.2),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tree", [False, True])
def test_equal_to_the_definition(variant, shape, tree):
    options = dict(VARIANTS[variant])
    if "s_aux" in options:
        options["s_aux"] = torch.randn(SHAPES[shape]["heads"])
    text = Text(30, SHAPES[shape], torch.float32, 1)
    parents = [-1, 0, 0, -1, 3, 4, 1] if tree else None
    read = Read(1, 18, list(range(18, 30)), parents)
    layer = Layer(**options)
    layer.read((text, Read(1, 0, list(range(18)))))
    (found,) = layer.read((text, read))
    window = options.pop("sliding_window", None)
    span = Span(0, 12, layer.pool[1], read)
    visible = torch.zeros(30, 30, dtype=torch.bool)
    for row, keys in enumerate(keys_of(span, window), 18):
        visible[row, keys] = True
    torch.testing.assert_close(
        found.double(), defined(text, visible, **options)[18:], atol=2e-5, rtol=1e-5
    )


@pytest.mark.sample(5)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options", [{}, dict(softcap=1.5)], ids=["fused", "written out"]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_of_a_row_depend_on_its_text_alone(shape, options, dtype):
    """Read token by token; in chunks; beside others; after rejected draft tokens."""
    text, other = (
        Text(length, SHAPES[shape], dtype, seed) for length, seed in ((400, 1), (90, 2))
    )
    alone = Layer(**options)
    want = torch.cat(
        [alone.read((text, Read(1, place, [place])))[0] for place in range(400)]
    )
    for sizes in ([400], [7] * 57 + [1], [100, 1, 96, 203], [255, 145]):
        layer, past, got = Layer(**options), 0, []
        for size in sizes:
            rows = list(range(past, past + size))
            got += layer.read((text, Read(1, past, rows)))
            past += size
        assert torch.equal(torch.cat(got), want), sizes
    layer, got = Layer(**options), []
    for past in range(0, 400, 10):
        rows = list(range(past, past + 10))
        beside = (other, Read(2, 0, list(range(1 + past % 90))))
        # draft tokens that are then rejected
        wrong = [*rows, *(place % 400 for place in range(past + 60, past + 65))]
        pair = [(text, Read(1, past, wrong)), beside]
        got.append(
            layer.read(*(pair if past % 20 else pair[::-1]))[0 if past % 20 else 1][:10]
        )
    assert torch.equal(torch.cat(got), want)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options", [{}, dict(softcap=1.5)], ids=["fused", "written out"]
)
@pytest.mark.parametrize("dim", [64, 128])
def test_the_length_of_padded_keys_changes_no_bit(dim, options, dtype):
    """Rows early in a long chunk are padded far beyond their text, but not alone."""
    text = Text(1500, dict(heads=4, kv_heads=2, dim=dim, value_dim=dim), dtype, 4)
    whole, parts, got = Layer(**options), Layer(**options), []
    (want,) = whole.read((text, Read(1, 0, list(range(1500)))))
    for past in range(0, 1500, 20):
        got += parts.read((text, Read(1, past, list(range(past, past + 20)))))
    assert torch.equal(torch.cat(got), want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, dict(softcap=1.5), dict(sliding_window=90)],
    ids=["fused", "written out", "window"],
)
def test_pages_anywhere_give_the_bits_of_adjacent_pages(options, dtype):
    text = Text(700, SHAPES["grouped heads"], dtype, 5)
    together, apart, got = Layer(**options), Layer(**options), []
    (want,) = together.read((text, Read(1, 0, list(range(700)))))
    for past in range(0, 700, 50):  # another text takes every page between
        got += apart.read((text, Read(1, past, list(range(past, past + 50)))))
        apart.read((text, Read(2, past, list(range(past, past + 50)))))
    assert together.pool[1].run == 11
    assert apart.pool[1].run == 1
    assert torch.equal(torch.cat(got), want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, dict(softcap=1.5), dict(sliding_window=90)],
    ids=["fused", "written out", "window"],
)
@pytest.mark.parametrize("past", [61, 500])
def test_branch_has_the_bits_of_a_chain(past, options, dtype):
    """Wrong siblings before accepted nodes, late reads, and pages taken between."""
    text = Text(past + 20, SHAPES["grouped heads"], dtype, 3)
    plain, tree = Layer(**options), Layer(**options)
    (want,) = plain.read((text, Read(1, 0, list(range(past + 5)))))
    for start in range(0, past, 50):
        rows = list(range(start, min(start + 50, past)))
        tree.read((text, Read(1, start, rows)))
        tree.read((text, Read(2, start, rows)))
    wrong = iter(range(past + 6, past + 20))
    accepted = {2: past + 1, 5: past + 2, 6: past + 3}
    nodes = [accepted.get(node) or next(wrong) for node in range(9)]
    parents = [-1, 0, -1, -1, 2, 2, 5, 5, 6]
    (first,) = tree.read((text, Read(1, past, [past, *nodes], parents)))
    got = first[[0, *(1 + node for node in accepted)]]
    assert torch.equal(got, want[past : past + 4])
    held = Read(1, past + 1, [past + 4], [*parents, 6], held=9)
    assert torch.equal(tree.read((text, held))[0], want[past + 4 :])


def test_rows_of_no_span_are_zero_and_windows_noted():
    text = Text(4, SHAPES["one head a group"], torch.float32, 1)
    pool = KVPool()
    pool.open(0, 3)
    plan = Plan(
        pool,
        (Span(0, 3, pool.extend(0, 0, 3), Read(0, 0, [0, 1, 2])),),
        torch.tensor([0, 1, 2]),
    )
    packed = [getattr(text, name)[None] for name in FIELDS]
    out, _ = attend(module(layer_idx=5), *packed, None, plan=plan, sliding_window=9)
    assert out[0, :3].any()
    assert not out[0, 3].any()
    assert plan.windows == {5: 9}


def test_attention_without_a_plan_is_refused():
    text = Text(4, SHAPES["one head a group"], torch.float32, 1)
    with pytest.raises(ModelError, match="set_attn_implementation"):
        attend(
            module(layer_idx=0), *(getattr(text, name)[None] for name in FIELDS), None
        )
