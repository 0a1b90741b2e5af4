"""Self-speculation by skipped sublayers, early exits and fewer bits: same text."""

import pytest
import torch

from foreword.draft.self_speculative import exits
from foreword.draft.self_speculative.base import FEW
from foreword.draft.self_speculative.layers import LayersDrafter, exit_after
from foreword.draft.self_speculative.quantized import QuantizedDrafter
from foreword.errors import InvalidRequest
from foreword.model import Model
from foreword.model.skip import LayerSkip
from foreword.types import Draft, DraftTree, SamplingParams
from grids import NEEDS_C, slow_case
from pair import llama
from running import (
    Case,
    at_both_heats,
    count_accepted,
    engine,
    finish,
    of_length,
    outputs,
    plain,
    prompts,
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
        slow_case(LayerSkip(mlp=frozenset({1, 2})), 0.5, 0.9),
        slow_case(exit_after(7, 8), 0.3, 0.6),
        slow_case(exit_after(0, 8), 0.0, 0.1),
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


LAYERS = 6
SPARE = range(2, LAYERS)
"""Layers of `shallow` that add nothing."""


def requests(**settings: object) -> list[Case]:
    """Return requests at temperature 0 and 1, with a grammar, and shared beginnings."""
    shared = {"max_tokens": 24, "ignore_eos": True, **settings}
    one, other = prompts()[1], prompts()[3]
    return [
        Case(one, SamplingParams(temperature=0.0, **shared)),
        Case(one, SamplingParams(temperature=1.0, seed=4, **shared)),
        Case((*other, *one), SamplingParams(temperature=0.7, seed=5, **shared)),
        Case((*other, *one[:9]), SamplingParams(temperature=0.0, **shared)),
        Case(prompts()[4], SamplingParams(regex="[a-z]{6,20} [0-9]{2}", max_tokens=24)),
    ]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("dtype", "rule"),
    [("bfloat16", "match"), ("float32", "match"), ("bfloat16", "without-replacement")],
)
def test_text_is_that_of_plain_decoding(dtype, rule):
    model = target(dtype)
    drafter = LayersDrafter.load("exit:6", model, None)
    assert drafter.skip == exit_after(6, 8)
    asked = requests()
    got = finish(engine(model, drafter, 5, slots=3, chunk=16, rule=rule), asked)
    accepted = sum(answer.request.stats.accepted for answer in got)
    assert accepted > 10
    rows = drafter.model.backend.early
    assert rows.kept > accepted
    if rule == "match":
        assert outputs(got) == outputs(plain(model, asked))


@pytest.mark.parametrize("given", ["0", "8", "-1", "x", "", "2.5", "٣"])
def test_exits_that_the_target_does_not_have_are_refused(given):
    with pytest.raises(InvalidRequest, match=f"draft='exit:{given}'.*from 1 to 7"):
        LayersDrafter.load(f"exit:{given}", target(), None)


def shallow() -> Model:
    """Return a model of 6 layers trained to exit, whose last four add nothing."""
    hf = llama(3, layers=LAYERS)
    with torch.no_grad():
        for layer in list(hf.model.layers)[SPARE.start :]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    setattr(hf.config, exits.KEY, [1, 2, 3, 5])
    return Model(hf)


@pytest.mark.slow
def test_trained_target_exits_in_the_middle():
    model = shallow()
    drafter = LayersDrafter.load(None, model, None)
    assert drafter.skip == exit_after(3, LAYERS)
    asked = [Case(prompt, of_length(60)) for prompt in ((5, 6, 7), (9, 8))]
    loop = engine(model, drafter, 3)
    got = finish(loop, asked)
    assert max(one.request.rounds for one in got) < 40
    assert sum(answer.request.stats.accepted for answer in got) > 40
    assert outputs(got) == outputs(plain(model, asked))


def test_exits_are_named_by_config_or_by_name(monkeypatch):
    model = Model(llama(0, layers=4))
    assert exits.trained_exits(model) == ()
    monkeypatch.setattr(model.hf.config, exits.KEY, [3, 1, 9, 0, "2"], raising=False)
    assert exits.trained_exits(model) == (1, 3)
    monkeypatch.delattr(model.hf.config, exits.KEY)
    monkeypatch.setattr(model, "name", "facebook/layerskip-llama3.2-1B")
    assert exits.trained_exits(model) == (1, 2, 3)


def test_draft_tokens_that_were_read_come_first():
    tree = DraftTree([4, 5, 6, 7], [-1, -1, 1, 0], [0.6, 0.4, 0.3, 0.2])
    read = DraftTree([5, 9, 4], [-1, -1, -1])
    (found,) = exits.read_first(Draft([tree]), [read]).trees
    assert found == DraftTree([5, 4, 6, 7], [-1, -1, 0, 1], [0.4, 0.6, 0.3, 0.2])


@NEEDS_C
@pytest.mark.parametrize(
    ("source", "bytes", "kept"),
    [(None, 0.29, 0.6), ("int4", 0.29, 0.6), ("int8", 0.54, 0.75)],
)
def test_most_draft_tokens_are_accepted(source, bytes, kept):
    model = target("bfloat16")
    drafter = QuantizedDrafter.load(source, model, None)
    got = finish(engine(model, drafter, 3), at_both_heats(24))
    assert outputs(got) == outputs(plain(model, at_both_heats(24)))
    stats = [one.request.stats for one in got]
    assert sum(one.accepted for one in stats) > kept * sum(one.drafted for one in stats)
    held = drafter.model.backend.executor.matrices.bytes
    assert held < bytes * 2 * model.parameters


@NEEDS_C
@pytest.mark.parametrize("chunk", [512, 7])
def test_it_never_reads_a_prompt(chunk):
    drafter = QuantizedDrafter.load("int4", target("bfloat16"), None)
    backend, longest = drafter.model.backend, []
    read, grow = backend.read, backend.grow

    def watched_read(reads):
        longest.extend(len(one.tokens) for one in reads)
        return read(reads)

    def watched_grow(one, ask):
        longest.append(len(one.tokens))
        return grow(one, ask)

    backend.read, backend.grow = watched_read, watched_grow
    loop = engine(target("bfloat16"), drafter, 3, chunk=chunk, slots=4)
    got = finish(loop, at_both_heats(24))
    assert sum(answer.request.stats.accepted for answer in got) > 0
    assert 0 < max(longest) <= max(FEW, 8)


@NEEDS_C
def test_nothing_is_kept_of_a_text_that_ended():
    drafter = QuantizedDrafter.load("int4", target("bfloat16"), None)
    finish(engine(target("bfloat16"), drafter, 3), at_both_heats(24)[:2])
    assert not any(value for value in vars(drafter).values() if isinstance(value, dict))


def test_what_it_cannot_be_made_from_is_refused():
    with pytest.raises(InvalidRequest, match="'int4' or 'int8'"):
        QuantizedDrafter.load("some/folder", target("float32"), None)
    with pytest.raises(InvalidRequest, match="only backend 'native' can"):
        QuantizedDrafter.load(None, target("float32"), None)
