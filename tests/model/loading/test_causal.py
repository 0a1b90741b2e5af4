"""Models that read in both directions write no text, whatever their config says."""

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, LlamaConfig, RobertaConfig

import tiny_models
from foreword.errors import ModelError
from foreword.model import Model
from tiny_sizes import sizes

SMALL = sizes(64, 96, 4, layers=2, vocab_size=320, max_position_embeddings=128)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", [BertConfig, RobertaConfig])
def test_a_masked_model_is_refused(tmp_path, config, dtype):
    AutoModelForCausalLM.from_config(config(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"bidirectional.*is_decoder=false"):
        Model.load(tmp_path, device="cpu", dtype=dtype)


@pytest.mark.filterwarnings("ignore:.*runs in mode")
def test_the_same_model_as_a_decoder_is_driven(tmp_path):
    AutoModelForCausalLM.from_config(
        BertConfig(**SMALL, is_decoder=True)
    ).save_pretrained(tmp_path)
    assert Model.load(tmp_path, device="cpu", dtype="float32").vocab == 320


def test_causal_kind_made_bidirectional_is_refused():
    hf = tiny_models.random(LlamaConfig(**SMALL, is_causal=False)).eval()
    with pytest.raises(ModelError, match="is bidirectional"):
        Model(hf)


@pytest.mark.parametrize("name", ["gpt-neox", "mamba", "mixtral", "qwen3.5"])
@pytest.mark.filterwarnings("ignore:.*runs in mode")
def test_models_that_write_are_taken_in_bfloat16(name):
    assert Model(tiny_models.build(name).to(torch.bfloat16)).vocab == tiny_models.VOCAB
