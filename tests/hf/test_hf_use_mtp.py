"""transformers' `use_mtp`: the layers of the model's own checkpoint draft, through
Foreword.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM

import foreword
import starter
from foreword.errors import InvalidRequest
from generating import OURS, OUTPUT
from mtp_families import FAMILIES, write

OPTIONS = dict(max_new_tokens=20, **OUTPUT)
INPUTS = torch.tensor([[3, 14, 15, 92, 65]])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write(FAMILIES["llama"], tmp_path_factory.mktemp("llama"))
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize("sample", [False, True])
def test_both_spellings_are_served_with_the_text_of_plain_decoding(model, sample):
    def call(**asks):
        torch.manual_seed(7)
        return model.generate(INPUTS, **OPTIONS, do_sample=sample, **asks)

    custom = OURS
    want = call(**custom, method="none").sequences.tolist()
    got = [call(**custom, use_mtp=True)]
    with foreword.enable():
        got.append(call(use_mtp=True))
    for output in got:
        assert output.sequences.tolist() == want
        assert sum(stats.accepted for stats in output.stats) > 0


def test_model_without_such_layers_is_refused():
    plain = AutoModelForCausalLM.from_pretrained(starter.target())
    says = "cannot use use_mtp=True: .* holds no layers that predict ahead"
    with foreword.enable(), pytest.raises(InvalidRequest, match=says):
        plain.generate(INPUTS, use_mtp=True, max_new_tokens=4)


def test_another_drafter_beside_is_refused(model):
    with foreword.enable(), pytest.raises(InvalidRequest, match="both say what drafts"):
        model.generate(INPUTS, use_mtp=True, assistant_early_exit=1)


def test_false_asks_for_nothing(model):
    with foreword.enable():
        output = model.generate(INPUTS, use_mtp=False, **OPTIONS)
    assert not hasattr(output, "stats")
