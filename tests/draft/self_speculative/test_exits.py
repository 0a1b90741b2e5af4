"""Early exit: where a target leaves to draft, with the text of plain decoding."""

import pytest
import torch

from foreword.draft.self_speculative import exits
from foreword.draft.self_speculative.layers import LayersDrafter, exit_after
from foreword.errors import InvalidRequest
from foreword.model import Model
from foreword.types import Draft, DraftTree, SamplingParams
from pair import llama
from running import Case, engine, finish, outputs, plain, prompts, target

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
    asked = [
        Case(prompt, SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))
        for prompt in ((5, 6, 7), (9, 8))
    ]
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
