"""The native backend multiplies by codes; scores are nearly the dequantized."""

from pathlib import Path

import pytest
import torch

import gguf_files
from foreword import LLM, SamplingParams
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights
from grids import NEEDS_C
from running import prompts

pytestmark = NEEDS_C
HERE = Path(__file__).parent
CODED = (
    "awq gptq-4 gptq-4-asym gptq-8-asym compressed-w4a16-asym compressed-w8a8 "
    "bitsandbytes-nf4"
).split()
CODED += ["torchao-int4"]
FAR = 0.01
"""Nats a token: rows are rounded in groups; random weights let more through."""


def apart(path: Path, tokens: list[int]) -> tuple[Model, torch.Tensor]:
    """The native model, and the KL divergence of its scores from float32's."""
    model = Model.load(path, device="cpu", dtype="bfloat16")
    model.open(1, len(tokens) + 1)
    found = model.read([Read(1, 0, tokens, keep=len(tokens))]).log_softmax(-1)
    reference = load_weights(path, read_config(path), torch.float32)
    with torch.inference_mode():
        whole = reference(torch.tensor([tokens])).logits[0].log_softmax(-1)
    return model, (whole.exp() * (whole - found)).sum(-1)


@pytest.mark.parametrize("name", CODED)
def test_scores_of_recorded_checkpoints(name):
    model, nats = apart(
        HERE / "recorded" / name, [token % 64 for token in range(3, 200, 7)]
    )
    assert model.capability.backend == "native"
    assert 4 < float(model.weights.removesuffix(" bits")) < 13
    assert nats.mean() < FAR


@pytest.fixture(scope="module", params=["Q8_0", "Q4_0", "Q5_1"])
def file(plain, request) -> Path:
    """The bundled draft model with few tokens, as the package gguf quantizes it."""
    return gguf_files.quantized(
        plain, plain.with_name(f"{request.param}.gguf"), request.param
    )


def texts() -> list[list[int]]:
    return [[token % gguf_files.TOKENS for token in prompt] for prompt in prompts()]


def test_scores_of_gguf_files(file):
    tokens = [token for text in texts() for token in text][:100]
    model, nats = apart(file, tokens)
    assert model.weights is not None
    assert nats.mean() < 0.002


def test_scores_of_k_quants():
    model, nats = apart(HERE / "mixed.gguf", list(range(3, 60)))
    assert model.weights is not None
    assert nats.mean() < FAR


@pytest.mark.sample(4)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", ["suffix", "lookahead", "layers"])
def test_drafts_leave_the_text_of_a_gguf_file_unchanged(file, method, temperature):
    llm = LLM(str(file))
    how = dict(temperature=temperature, seed=3, max_tokens=40, ignore_eos=True)
    plain = llm.generate(texts()[:3], SamplingParams(**how, method="none"))
    drafted = llm.generate(texts()[:3], SamplingParams(**how, method=method, nodes=4))
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert sum(one.stats.accepted for one in drafted) > 0


def test_weights_in_few_bits_are_not_quantized_again():
    with pytest.raises(ModelError, match=r"\d+\.\d bits weights. Leave 'weights' out"):
        Model.load(HERE / "mixed.gguf", device="cpu", weights="int4")


@pytest.mark.parametrize("backend", ["native", "cache"])
def test_codes_are_not_kept_beside_what_a_backend_holds(backend):
    model = Model.load(
        HERE / "mixed.gguf", device="cpu", dtype="bfloat16", backend=backend
    )
    assert not any(hasattr(part, "coded") for part in model.hf.modules())
