"""`assistant_early_exit` and `use_mtp`: the checkpoint's layers draft, in Foreword."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import foreword
import starter
from foreword.errors import InvalidRequest
from generating import OURS, OUTPUT
from mtp_families import FAMILIES, write

OPTIONS = dict(max_new_tokens=20, **OUTPUT)
INPUTS = dict(input_ids=torch.tensor([[3, 14, 15, 92, 65]]))


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(starter.target(), dtype=torch.float32)


@pytest.fixture(scope="module")
def ahead(tmp_path_factory):
    """A model whose checkpoint holds layers of multi-token prediction."""
    folder = write(FAMILIES["llama"], tmp_path_factory.mktemp("llama"))
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def inputs():
    tokenizer = AutoTokenizer.from_pretrained(starter.target())
    return tokenizer("Once upon a time there was", return_tensors="pt")


def check_spellings(model, inputs, sample, **asks):
    """Every spelling of a call drafts, and has the text of plain decoding."""

    def call(**more):
        torch.manual_seed(7)
        return model.generate(**inputs, **OPTIONS, do_sample=sample, **more)

    want = call(**OURS, method="none").sequences.tolist()
    got = [call(**OURS, **asks)]
    with foreword.enable():
        got.append(call(**asks))
        if "use_mtp" not in asks:  # which is no setting of a configuration
            config = GenerationConfig(**asks, max_new_tokens=20)
            got.append(call(generation_config=config))
    for output in got:
        assert output.sequences.tolist() == want
        assert sum(stats.accepted for stats in output.stats) > 0


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize("sample", [False, True])
def test_every_spelling_is_served_with_the_text_of_plain_decoding(
    model, inputs, ahead, sample
):
    check_spellings(model, inputs, sample, assistant_early_exit=6)
    check_spellings(ahead, INPUTS, sample, use_mtp=True)


@pytest.mark.parametrize("layers", [0, 8, -1, "4", True, 2.0])
def test_layers_that_the_model_does_not_have_are_refused(model, inputs, layers):
    asks = dict(assistant_early_exit=layers, **OPTIONS)
    says = f"cannot exit early with assistant_early_exit={layers!r}: .* 1 to 7"
    with foreword.enable(), pytest.raises(InvalidRequest, match=says):
        model.generate(**inputs, **asks)
    with pytest.raises(InvalidRequest, match=says):
        model.generate(**inputs, **asks, **OURS)


def test_model_without_layers_that_predict_ahead_is_refused(model):
    says = "cannot use use_mtp=True: .* holds no layers that predict ahead"
    with foreword.enable(), pytest.raises(InvalidRequest, match=says):
        model.generate(**INPUTS, use_mtp=True, max_new_tokens=4)


@pytest.mark.parametrize(
    "other",
    [
        dict(prompt_lookup_num_tokens=3),
        dict(draft_model=str(starter.draft())),
        dict(**OURS, drafter=str(starter.draft())),
        dict(**OURS, method="suffix"),
        dict(use_mtp=True),
    ],
    ids=lambda other: list(other)[-1],
)
def test_another_drafter_beside_is_refused(model, inputs, other):
    with foreword.enable(), pytest.raises(InvalidRequest, match="both say what drafts"):
        model.generate(**inputs, **OPTIONS, assistant_early_exit=4, **other)


def test_false_asks_for_nothing(ahead):
    with foreword.enable():
        output = ahead.generate(**INPUTS, use_mtp=False, **OPTIONS)
    assert not hasattr(output, "stats")
