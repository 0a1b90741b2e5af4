"""transformers' `assistant_early_exit`: the model's first layers draft, through
Foreword.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import foreword
import starter
from foreword.errors import InvalidRequest
from generating import OURS, OUTPUT

OPTIONS = dict(max_new_tokens=20, **OUTPUT)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(starter.target(), dtype=torch.float32)


@pytest.fixture(scope="module")
def inputs():
    tokenizer = AutoTokenizer.from_pretrained(starter.target())
    return tokenizer("Once upon a time there was", return_tensors="pt")


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize("sample", [False, True])
def test_both_spellings_are_served_with_the_text_of_plain_decoding(
    model, inputs, sample
):
    def call(**asks):
        torch.manual_seed(7)
        return model.generate(**inputs, **OPTIONS, do_sample=sample, **asks)

    custom = OURS
    want = call(**custom, method="none").sequences.tolist()
    got = [call(**custom, assistant_early_exit=6)]
    with foreword.enable():
        got.append(call(assistant_early_exit=6))
        config = GenerationConfig(assistant_early_exit=6, max_new_tokens=20)
        got.append(call(generation_config=config))
    for output in got:
        assert output.sequences.tolist() == want
        assert sum(stats.accepted for stats in output.stats) > 0


@pytest.mark.parametrize("layers", [0, 8, -1, "4", True, 2.0])
def test_layers_that_the_model_does_not_have_are_refused(model, inputs, layers):
    asks = dict(assistant_early_exit=layers, **OPTIONS)
    says = f"cannot exit early with assistant_early_exit={layers!r}: .* 1 to 7"
    with foreword.enable(), pytest.raises(InvalidRequest, match=says):
        model.generate(**inputs, **asks)
    with pytest.raises(InvalidRequest, match=says):
        model.generate(**inputs, **asks, **OURS)


@pytest.mark.parametrize(
    "other",
    [
        dict(prompt_lookup_num_tokens=3),
        dict(draft_model=str(starter.draft())),
        dict(**OURS, drafter=str(starter.draft())),
        dict(**OURS, method="suffix"),
    ],
    ids=lambda other: list(other)[-1],
)
def test_another_drafter_beside_is_refused(model, inputs, other):
    with foreword.enable(), pytest.raises(InvalidRequest, match="both say what drafts"):
        model.generate(**inputs, **OPTIONS, assistant_early_exit=4, **other)
