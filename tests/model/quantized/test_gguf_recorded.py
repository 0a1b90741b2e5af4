"""Files of llama.cpp's converter are read as the checkpoints that it read."""

from pathlib import Path

import gguf
import pytest
import torch
from torch import nn

import gguf_files
from foreword import LLM, SamplingParams
from foreword.errors import ModelError
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights

HERE = Path(__file__).parent / "recorded"
NAMES = ["smollm3", "lfm2", "gpt-oss", "qwen35", "qwen35moe"]
SETTINGS = tuple(
    (
        "rope_parameters layer_types head_dim sliding_window no_rope_layers "
        "tie_word_embeddings"
    ).split()
)
PROMPT = [token * 5 + 3 for token in range(12)]

pytestmark = pytest.mark.filterwarnings("ignore:.*runs in mode 'cache'")


@pytest.fixture(params=NAMES)
def folder(request) -> Path:
    return HERE / f"gguf-{request.param}"


def test_every_recorded_file_is_tested():
    assert sorted(f"gguf-{name}" for name in NAMES) == sorted(
        path.name for path in HERE.glob("gguf-*")
    )


def read(path: Path, dtype: torch.dtype):
    return load_weights(path, read_config(path), dtype).eval()


def test_weights_are_those_of_the_checkpoint(folder):
    theirs = read(folder, torch.bfloat16)
    ours = read(folder / "model.gguf", torch.bfloat16)
    assert type(ours) is type(theirs)
    found, expected = ours.state_dict(), theirs.state_dict()
    assert set(found) == set(expected)
    for name, weight in expected.items():
        # one was added, and rounded, in float32
        if "norm" in name and folder.name.startswith("gguf-qwen35"):
            torch.testing.assert_close(
                found[name].float(), weight.float(), rtol=0.005, atol=1e-7
            )
        else:
            assert torch.equal(found[name], weight), name


def test_settings_are_those_of_the_checkpoint(folder):
    theirs, ours = read_config(folder), read_config(folder / "model.gguf")
    for name in SETTINGS:
        assert getattr(ours, name, None) == getattr(theirs, name, None), name


@torch.inference_mode()
def test_text_is_that_of_transformers_from_the_checkpoint(folder):
    theirs = read(folder, torch.float32)
    written = theirs.generate(
        torch.tensor([PROMPT]), do_sample=False, max_new_tokens=24, pad_token_id=0
    )[0]
    llm = LLM(folder / "model.gguf", dtype="float32", tokenizer=False, method="none")
    ours = llm.generate(
        [PROMPT], SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    )[0].tokens
    assert ours == written[len(PROMPT) :].tolist()


def test_codes_have_the_order_of_the_weights(folder, tmp_path):
    path = gguf_files.quantized(folder / "model.gguf", tmp_path / "model.gguf", "Q8_0")
    numbers = read(folder / "model.gguf", torch.bfloat16)
    codes = read(path, torch.bfloat16)
    held = {
        name: layer for name, layer in codes.named_modules() if hasattr(layer, "coded")
    }
    assert len(held) > 8
    for name, layer in held.items():
        if isinstance(layer, nn.Linear):
            assert torch.equal(
                layer.coded.read().dense().to(torch.bfloat16), layer.weight
            ), name
    for name, weight in numbers.state_dict().items():
        torch.testing.assert_close(
            codes.state_dict()[name], weight, rtol=0.01, atol=0.01, msg=name
        )


def test_a_window_of_lfm2_is_refused(tmp_path):
    more = {"lfm2.attention.sliding_window": 8}
    path = gguf_files.quantized(
        HERE / "gguf-lfm2" / "model.gguf", tmp_path / "model.gguf", "Q8_0", **more
    )
    with pytest.raises(ModelError, match="sliding window is not supported"):
        read_config(path)


def test_the_layer_that_predicts_further_tokens_is_left_out():
    path = HERE / "gguf-qwen35" / "model.gguf"
    assert "blk.4.nextn.eh_proj.weight" in {
        tensor.name for tensor in gguf.GGUFReader(path).tensors
    }
    assert read_config(path).num_hidden_layers == 4


def test_last_of_four_layers_attends_by_default(tmp_path):
    silent = {
        "qwen35.attention.recurrent_layers": None,
        "qwen35.full_attention_interval": None,
    }
    path = gguf_files.quantized(
        HERE / "gguf-qwen35" / "model.gguf", tmp_path / "model.gguf", "Q8_0", **silent
    )
    assert read_config(path).layer_types == ["linear_attention"] * 3 + [
        "full_attention"
    ]
