"""Experts are multiplied as codes; scores and texts are the dequantized ones'."""

from functools import lru_cache
from pathlib import Path

import pytest
import torch
from transformers import Qwen2MoeConfig, Qwen3MoeConfig

import gguf_files
import tiny_sizes
from foreword import LLM, SamplingParams
from foreword.model import Model, Read
from foreword.model.architectures import loader
from foreword.model.executors.native import experts
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights
from grids import NEEDS_C
from tiny_sizes import NO_ENDS, sizes

pytestmark = NEEDS_C
SIZES = sizes(128, 128, 4, 2, 2, **tiny_sizes.experts(8, 2, 64), **NO_ENDS) | dict(
    vocab_size=96, max_position_embeddings=256, initializer_range=0.15
)
FIELDS = dict(expert_count=8, expert_used_count=2, expert_feed_forward_length=64)
FILES = {
    "qwen3moe, Q4_0": Qwen3MoeConfig(**SIZES, head_dim=32, norm_topk_prob=True),
    "qwen3moe, MXFP4": Qwen3MoeConfig(**SIZES, head_dim=32, norm_topk_prob=True),
    "qwen2moe, Q8_0": Qwen2MoeConfig(**SIZES, shared_expert_intermediate_size=128),
    "qwen2moe, Q5_1": Qwen2MoeConfig(**SIZES, shared_expert_intermediate_size=128),
}
RECORDED = Path(__file__).parent / "recorded" / "gguf-gpt-oss"
FAR = 0.01
"""Nats of a middling token: a router may take either of two equal experts."""


@pytest.fixture(scope="module", params=[*FILES, "gpt-oss", "gpt-oss in safetensors"])
def file(request, tmp_path_factory) -> Path:
    """Matrices of gpt-oss are in bfloat16, but for the experts."""
    if request.param.startswith("gpt-oss"):
        is_whole = request.param.endswith("safetensors")
        return RECORDED if is_whole else RECORDED / "model.gguf"
    config, (architecture, kind) = FILES[request.param], request.param.split(", ")
    torch.manual_seed(1)
    model = loader(config).from_config(config).float().eval()
    more = (
        dict(attention__key_length=32)
        if architecture == "qwen3moe"
        else dict(expert_shared_feed_forward_length=128)
    )
    return gguf_files.write(
        model,
        tmp_path_factory.mktemp("moe") / "model.gguf",
        architecture,
        kind,
        **FIELDS,
        **more,
    )


def test_codes_have_the_order_of_the_weights(file):
    layer = load_weights(file, read_config(file), torch.bfloat16).model.layers[1]
    weights, codes = experts.products(layer), experts.codes(layer)
    assert set(codes) == {"gate_up", "down"}
    for name, made in codes.items():
        assert torch.equal(made().dense().to(torch.bfloat16), weights[name]), name


@lru_cache(maxsize=1)
def loaded(file: Path) -> Model:
    return Model.load(file, device="cpu", dtype="bfloat16")


def test_scores_are_nearly_those_of_the_dequantized_weights(file):
    tokens = [token * 7 % 64 for token in range(60)]
    model = loaded(file)
    assert model.capability.backend == "native"
    assert float(model.weights.removesuffix(" bits")) < 9.1
    model.open(1, len(tokens) + 1)
    found = model.read([Read(1, 0, tokens, keep=len(tokens))]).log_softmax(-1)
    with torch.inference_mode():
        whole = (
            load_weights(file, read_config(file), torch.float32)(torch.tensor([tokens]))
            .logits[0]
            .log_softmax(-1)
        )
    assert (whole.exp() * (whole - found)).sum(-1).median() < FAR


def test_scores_do_not_depend_on_the_rows_of_a_forward(file):
    tokens = [token * 11 % 64 for token in range(40)]
    model = loaded(file)
    model.open(3, len(tokens) + 1)
    whole = model.read([Read(3, 0, tokens, keep=len(tokens))])
    for rows in (1, 3, 7, 20):
        model.open(2, len(tokens) + 1)
        parts = [tokens[at : at + rows] for at in range(0, len(tokens), rows)]
        read = [
            model.read([Read(2, at * rows, part, keep=len(part))])
            for at, part in enumerate(parts)
        ]
        assert torch.equal(torch.cat(read), whole), f"{rows} rows"
        model.close(2)


def test_drafts_leave_the_text_unchanged(file):
    llm = LLM(loaded(file), tokenizer=False)
    for temperature in (0.0, 0.8):
        check_drafts(llm, temperature)


def check_drafts(llm: LLM, temperature: float) -> None:
    how = dict(temperature=temperature, seed=3, max_tokens=40, ignore_eos=True)
    texts = [[1, 2, 3, 4] * 5, [7, 8, 9] * 3, [5, 6]]
    params = SamplingParams(**how, method="none")
    plain = [llm.generate([text], params)[0].tokens for text in texts]
    drafted = llm.generate(texts, SamplingParams(**how, method="layers", nodes=4))
    assert [one.tokens for one in drafted] == plain
    assert sum(one.stats.accepted for one in drafted) > 0
