"""Experts in MXFP4 are read as transformers itself dequantizes them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Mxfp4Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import quantizing
import tiny_models
from foreword.errors import ModelError
from foreword.model.quantized.formats.mxfp4 import coded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantizing.mxfp4(tmp_path_factory.mktemp("gpt-oss"))


@pytest.mark.filterwarnings("ignore")
def test_scores_are_those_of_transformers(folder):
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, quantization_config=Mxfp4Config(dequantize=True)
    )
    ours = quantizing.loaded(folder, torch.bfloat16)
    assert tiny_models.differing(theirs.state_dict(), ours.state_dict()) == []
    tokens = torch.arange(20)[None]
    with torch.inference_mode():
        assert torch.equal(ours(tokens).logits, theirs(tokens).logits)


def test_the_matrix_of_an_expert_is_exact():
    """All scales but the smallest, too small for float32, and the largest, NaN."""
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)[
        :, torch.arange(250) % 16
    ]
    scales = torch.arange(3, 253, dtype=torch.uint8)[None]
    found = coded(blocks, scales).dense()
    assert torch.equal(
        found,
        convert_moe_packed_tensors(blocks[None], scales[None], dtype=torch.float32)[
            0
        ].T,
    )


def test_missing_scales_are_named(folder, tmp_path):
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"the weights of .*: {name} is missing"):
        quantizing.loaded(tmp_path)
