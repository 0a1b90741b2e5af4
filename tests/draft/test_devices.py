"""A draft model drafts from another device than the target's; the text is the same."""

import pytest

import starter
from foreword.draft.lm import LanguageModelDrafter
from foreword.model import Model
from foreword.types import SamplingParams
from running import (
    Case,
    count_accepted,
    engine,
    finish,
    outputs,
    plain,
    prompts,
    target,
)
from two_devices import ELSEWHERE, TwoDevices


class Away(Model):
    """A model whose scores are on the second device."""

    def read(self, reads):
        return super().read(reads).to(ELSEWHERE)


@pytest.mark.parametrize(
    ("rule", "temperature"),
    [("match", 0.0), ("match", 1.0), ("rejection", 1.0), ("without-replacement", 1.0)],
)
def test_drafts_of_another_device_change_no_text(temperature, rule):
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=8)
    asked = [Case(prompt, params) for prompt in prompts()[:2]]
    outcomes = []
    for kind in (Model, Away):
        model = kind.load(starter.draft(), dtype="float32", backend="pool")
        drafter = LanguageModelDrafter(model, target().vocab)
        with TwoDevices():
            answers = finish(engine(target(), drafter, 4, slots=2, rule=rule), asked)
        assert count_accepted(answers) > 0
        outcomes.append(outputs(answers))
    assert outcomes[0] == outcomes[1]
    if rule == "match":
        assert outcomes[0] == outputs(plain(target(), asked))
