"""Skipped halves of layers: the search for them, the file they are kept in, and the
search while text is written.
"""

from random import Random

import pytest

import tiny_models
from foreword.draft.self_speculative.base import SPARE
from foreword.draft.self_speculative.layers import (
    EVERY,
    LayersDrafter,
    costs,
    exit_after,
    first,
    gain,
    load,
    neighbour,
    save,
)
from foreword.errors import InvalidRequest
from foreword.model import Model
from foreword.model.view import view
from foreword.native.forward import library
from foreword.types import SamplingParams
from running import Case, engine, finish, plain, prompts, target


def requests(length: int = 40) -> list[Case]:
    settings = [
        SamplingParams(temperature=t, seed=5, max_tokens=length, ignore_eos=True)
        for t in (0.0, 1.0)
    ]
    return [Case(prompt, params) for prompt in prompts() for params in settings]


def test_a_neighbour_is_another_mask_of_the_same_halves():
    dice, mask = Random(1), frozenset({0, 3, 7})
    made = [neighbour(mask, 10, dice) for _ in range(200)]
    assert all(one <= frozenset(range(10)) for one in made)
    assert {len(one ^ mask) for one in made if len(one) != len(mask)} <= {1, 2}
    assert any(len(one) == len(mask) and len(one ^ mask) > 2 for one in made)


def test_gain_is_that_of_the_best_length():
    # no length pays, and one draft token loses least
    assert gain(0.0, 0.5) == pytest.approx(1 / 1.5)
    assert gain(0.5, 0.9) == pytest.approx(1.5 / 1.9)
    assert gain(0.9, 0.5) == pytest.approx(
        max(sum(0.9**i for i in range(k + 1)) / (1 + 0.5 * k) for k in range(1, 9))
    )
    assert gain(1.0, 0.25) == pytest.approx(9 / 3)


def test_the_costs_of_all_halves_leave_the_head():
    found, model = costs(target()), target()
    assert len(found) == 2 * model.hf.config.num_hidden_layers
    head = model.vocab * model.hf.config.hidden_size
    norms = 384 * (2 * 8 + 1)
    assert 1 - sum(found) == pytest.approx(head / (model.parameters - norms))


@pytest.mark.parametrize("kind", ["gpt2", "gpt-neox", "opt", "mixtral"])
def test_kinds_that_name_their_sizes_otherwise_have_such_costs_too(kind):
    found = costs(Model(tiny_models.build(kind)))
    assert len(found) == 4
    assert 0 < sum(found) < 1


def test_a_mask_is_kept_in_a_file(tmp_path):
    mask = frozenset({1, 6, 7, 12})
    save(mask, tmp_path / "mask.json")
    assert load(tmp_path / "mask.json", target()) == mask
    assert (
        tmp_path / "mask.json"
    ).read_text() == '{"attention": [3, 6], "mlp": [0, 3]}\n'
    drafter = LayersDrafter.load(str(tmp_path / "mask.json"), target(), None)
    assert (drafter.mask, drafter.every) == (mask, 0)
    for said in ("{}", "[1]", "no json", '{"attention": ["x"], "mlp": []}'):
        (tmp_path / "wrong.json").write_text(said)
        with pytest.raises(InvalidRequest, match="cannot read a mask"):
            load(tmp_path / "wrong.json", target())
    (tmp_path / "far.json").write_text('{"attention": [8], "mlp": []}')
    with pytest.raises(InvalidRequest, match="does not have"):
        LayersDrafter.load(tmp_path / "far.json", target(), None)
    with pytest.raises(InvalidRequest, match="no draft model"):
        LayersDrafter.load(target(), target(), None)


def test_early_exit_is_a_mask():
    assert exit_after(6, 8) == {12, 13, 14, 15}


@pytest.mark.parametrize(
    ("mask", "least", "most"),
    [
        pytest.param(frozenset({3, 5}), 0.5, 0.9, marks=pytest.mark.slow),
        pytest.param(exit_after(7, 8), 0.3, 0.6, marks=pytest.mark.slow),
        pytest.param(frozenset(range(16)), 0.0, 0.1, marks=pytest.mark.slow),
    ],
)
def test_the_text_stays_what_it_is_whatever_is_left_out(mask, least, most):
    drafter = LayersDrafter(view(target(), spare=SPARE), costs(target()), mask)
    asked = requests(24)[2:8]
    got = finish(engine(target(), drafter, 4, chunk=16, slots=4), asked)
    assert [one.said for one in got] == [one.said for one in plain(target(), asked)]
    kept = sum(one.sequence.stats.accepted for one in got) / sum(
        one.sequence.stats.drafted for one in got
    )
    assert least <= kept <= most


@pytest.mark.slow
def test_it_finds_a_better_mask_while_it_writes():
    model = target("float32" if isinstance(library(), str) else "bfloat16")
    # the first layer, without which this model cannot say a word
    start = frozenset({0, 1, 4})
    drafter = LayersDrafter(view(model, spare=SPARE), costs(model), start, every=2)
    asked = requests(100)[:4]
    got = finish(engine(model, drafter, 1), asked)
    assert drafter.mask != start
    assert [one.said for one in got] == [one.said for one in plain(model, asked)]
    drafter.every = 0
    again = finish(engine(model, drafter, 1), asked)
    kept = [
        sum(one.sequence.stats.accepted for one in answers) for answers in (got, again)
    ]
    assert kept[1] > kept[0]


def test_without_a_file_it_starts_somewhere_and_searches():
    drafter = LayersDrafter.load(None, target(), None)
    assert drafter.every == EVERY
    assert drafter.mask == first(8) == {4, 8}
