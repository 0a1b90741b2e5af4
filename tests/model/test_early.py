"""Rows whose first layers a view has run: the target goes on with the same bits."""

from functools import cache

import pytest
import torch

import starter
from foreword.model import Model, Read
from foreword.model.skip import LayerSkip
from foreword.model.view import view
from running import prompts

BACKENDS = ["native", "pool"]
EXIT = 3


@cache
def loaded(backend: str) -> Model:
    return Model.load(starter.target(), backend=backend, dtype="bfloat16")


def exit_view(model: Model, after: int = EXIT, spare: int = 64) -> Model:
    layers = model.hf.config.num_hidden_layers
    rest = frozenset(range(after, layers))
    return view(model, skip=LayerSkip(rest, rest), spare=spare)


DRAFTED = [11, 12, 13, 14, 15]
TREE = [-1, -1, 0, 0, 1]


def start(model: Model, *texts: list[int]) -> None:
    """Open sequences 1, 2, … and read their texts except the last token."""
    for number, text in enumerate(texts, 1):
        model.open(number, 200)
        model.read([Read(number, 0, text[:-1], keep=0)])


def draft(
    early: Model, end: int, token: int, parents: list[int], read: list[int]
) -> None:
    """Read the last token, then these draft tokens in this order; -1 = another one."""
    early.read([Read(1, end, [token])])
    above = [
        -1 if node < 0 or parents[node] < 0 else read.index(parents[node])
        for node in read
    ]
    tokens = [99 if node < 0 else DRAFTED[node] for node in read]
    early.read([Read(1, end + 1, tokens, above, keep=len(read))])


def follow(model: Model, *stops: int) -> list[torch.Tensor]:
    """Return scores of further tokens, which attend to all rows before them."""
    return [
        model.read(
            [Read(number, stop, [token]) for number, stop in enumerate(stops, 1)]
        )
        for token in (5, 9)
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("parents", "read", "kept"),
    [
        pytest.param(None, [0, 1, 2, 3], 5, id="chain"),
        pytest.param(TREE, [0, 1, 2, 3], 5, id="tree"),
        # rows of draft tokens that were not chosen are filled by later ones
        pytest.param(TREE, [0, -1, 1, -1, 2], 4, id="gaps"),
        pytest.param(TREE, [1, 0], 2, id="order"),
    ],
)
def test_split_forward_has_the_bits_of_a_whole_one(backend, parents, read, kept):
    model = loaded(backend)
    early = exit_view(model)
    one, other = (list(prompt) for prompt in prompts()[:2])
    end = len(one) - 1
    reads = [
        Read(1, end, [*one[-1:], *DRAFTED], parents, keep=6),
        # nothing of it was drafted
        Read(2, len(other) - 1, [*other[-1:], 7, 8], keep=3),
    ]
    stops = end + 6, len(other) + 2
    start(model, one, other)
    whole = [model.read(reads), *follow(model, *stops)]
    start(model, one, other)
    draft(early, end, one[-1], parents or [-1, 0, 1, 2, 3], read)
    rows = early.backend.early
    assert rows.holds(reads[:1])
    split = [model.read(reads), *follow(model, *stops)]
    assert not rows.holds(reads)
    assert rows.kept == kept
    for expected, found in zip(whole, split, strict=True):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_are_forgotten_when_their_place_is_written(backend):
    model = loaded(backend)
    early = exit_view(model)
    text = list(prompts()[0])
    end = len(text) - 1
    read = [Read(1, end, [*text[-1:], *DRAFTED], keep=6)]
    start(model, text)
    whole = model.read(read)
    # another view writes there: what was drafted is not there any more
    start(model, text)
    draft(early, end, text[-1], [-1, 0], [0, 1])
    exit_view(model, EXIT + 1).read([Read(1, end, [3, 4])])
    rows = early.backend.early
    assert not rows.holds(read)
    assert torch.equal(model.read(read), whole)
    # a closed sequence
    start(model, text)
    draft(early, end, text[-1], [-1, 0], [0, 1])
    model.open(1, 200)
    assert not rows.holds(read)


def test_only_whole_early_exits_keep_rows():
    layers = LayerSkip(frozenset({5, 6, 7}), frozenset({5, 6, 7}))
    assert layers.exit(8) == 5
    assert layers.exit(9) == LayerSkip().exit(8) == 0
    assert LayerSkip(frozenset({7}), frozenset({6})).exit(8) == 0
    assert LayerSkip(frozenset(range(8)), frozenset(range(8))).exit(8) == 0
    model = loaded("native")
    own = exit_view(model, spare=0)
    assert own.backend.early is None
