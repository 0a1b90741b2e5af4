"""Skipped sublayers: how they are named, and the text that stays what it is."""

import pytest

from foreword.draft.self_speculative.layers import LayersDrafter, exit_after, read
from foreword.errors import InvalidRequest
from foreword.model.skip import LayerSkip
from foreword.types import SamplingParams
from running import Case, engine, finish, plain, prompts, target


def requests(length: int = 40) -> list[Case]:
    settings = [
        SamplingParams(temperature=t, seed=5, max_tokens=length, ignore_eos=True)
        for t in (0.0, 1.0)
    ]
    return [Case(prompt, params) for prompt in prompts() for params in settings]


def test_a_file_says_what_is_skipped(tmp_path):
    (tmp_path / "mask.json").write_text('{"attention": [3, 6], "mlp": [0, 3]}')
    drafter = LayersDrafter.load(str(tmp_path / "mask.json"), target(), None)
    assert drafter.skip == LayerSkip(frozenset({3, 6}), frozenset({0, 3}))
    for said in ("{}", "[1]", "no json", '{"attention": ["x"], "mlp": []}'):
        (tmp_path / "wrong.json").write_text(said)
        with pytest.raises(InvalidRequest, match="cannot read a mask"):
            read(tmp_path / "wrong.json")
    (tmp_path / "far.json").write_text('{"attention": [8], "mlp": []}')
    with pytest.raises(InvalidRequest, match="cannot skip other layers"):
        LayersDrafter.load(tmp_path / "far.json", target(), None)
    with pytest.raises(InvalidRequest, match="no draft model"):
        LayersDrafter.load(target(), target(), None)


def test_early_exit_skips_all_later_layers():
    assert exit_after(6, 8) == LayerSkip(frozenset({6, 7}), frozenset({6, 7}))


@pytest.mark.parametrize(
    ("skip", "least", "most"),
    [
        pytest.param(
            LayerSkip(mlp=frozenset({1, 2})), 0.5, 0.9, marks=pytest.mark.slow
        ),
        pytest.param(exit_after(7, 8), 0.3, 0.6, marks=pytest.mark.slow),
        pytest.param(exit_after(0, 8), 0.0, 0.1, marks=pytest.mark.slow),
    ],
)
def test_the_text_stays_what_it_is_whatever_is_left_out(skip, least, most):
    drafter = LayersDrafter(target(), skip)
    asked = requests(24)[2:8]
    got = finish(engine(target(), drafter, 4, chunk=16, slots=4), asked)
    assert [one.said for one in got] == [one.said for one in plain(target(), asked)]
    kept = sum(one.sequence.stats.accepted for one in got) / sum(
        one.sequence.stats.drafted for one in got
    )
    assert least <= kept <= most


def test_without_a_file_it_skips_the_attention_of_every_other_layer():
    drafter = LayersDrafter.load(None, target(), None)
    assert drafter.skip == LayerSkip(frozenset({2, 4}))
