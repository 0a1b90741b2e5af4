"""Skipped sublayers: how they are named, and the text that stays what it is."""

import pytest

from foreword.draft.self_speculative.layers import LayersDrafter, exit_after
from foreword.errors import InvalidRequest
from foreword.model.skip import LayerSkip
from running import (
    at_both_heats,
    count_accepted,
    engine,
    finish,
    outputs,
    plain,
    target,
)


def test_drafts_other_than_exits_are_refused():
    for draft in ("mask.json", target()):
        with pytest.raises(InvalidRequest, match="no draft model and no file"):
            LayersDrafter.load(draft, target(), None)


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
    asked = at_both_heats(24)[2:8]
    got = finish(engine(target(), drafter, 4, chunk=16, slots=4), asked)
    assert outputs(got) == outputs(plain(target(), asked))
    kept = count_accepted(got) / sum(one.request.stats.drafted for one in got)
    assert least <= kept <= most


def test_without_an_exit_it_skips_the_attention_of_every_other_layer():
    drafter = LayersDrafter.load(None, target(), None)
    assert drafter.skip == LayerSkip(frozenset({2, 4}))
