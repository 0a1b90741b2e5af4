"""PEFT's adapters are read as PEFT does: near scores, the merged model's text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gguf_files
import quantizing
import tiny_lora
import tiny_models
from foreword import LLM, Completion, SamplingParams
from foreword.model import Read
from foreword.model.layers import drop_codes
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
GREEDY = SamplingParams(temperature=0, max_tokens=40, adapter="a")
BOTH = (GREEDY, SamplingParams(seed=7, max_tokens=40, n=3, adapter="a"))
SETTINGS: dict[str, dict[str, Any]] = {
    "usual": {},
    "rank 1": dict(r=1),
    "rank-stabilized": dict(use_rslora=True),
    "ranks by pattern": dict(rank_pattern={"down_proj": 7, r"layers\.1\.mlp.*": 3}),
    "alphas by pattern": dict(alpha_pattern={r"layers\.0\.self_attn\.q_proj": 40}),
    "both by pattern": dict(
        rank_pattern={"q_proj": 2}, alpha_pattern={"q_proj": 5}, use_rslora=True
    ),
    "every linear layer": dict(target_modules="all-linear"),
    "an expression": dict(target_modules=r".*\.(v_proj|up_proj)"),
    "some layers": dict(layers_to_transform=[1]),
    "a layer less": dict(exclude_modules=["layers.0.mlp.down_proj"]),
    "trained otherwise": dict(init_lora_weights="gaussian", lora_dropout=0.1),
}
KINDS = {
    "gpt2": ["c_attn", "c_proj"],
    "phi3": ["qkv_proj", "gate_up_proj"],
    "gemma3": ["q_proj", "o_proj", "up_proj"],
    "qwen2": ["k_proj", "v_proj"],
    "gpt-neox": ["query_key_value", "dense_h_to_4h"],
    "mixtral": ["q_proj", "o_proj"],
    "qwen2-moe": ["q_proj", "shared_expert.up_proj"],
    "opt": ["fc1", "out_proj"],
}


def answers(
    model: object, asked: list[SamplingParams], **options: Any
) -> list[Completion]:
    with LLM(model, tokenizer=False, backend="pool", **options) as llm:
        return llm.generate([PROMPT] * len(asked), asked)


def tokens(found: list[Completion]) -> list[list[int]]:
    return [one.tokens for one in found]


def same_text(kind: str, folder: Path, **settings: Any) -> None:
    """Compare the adapter, drafted and beside the model, with the merged model."""
    base = tiny_models.build(kind)
    whole = tiny_lora.merged(tiny_lora.save(base, folder, 1, **settings))
    alone = [replace(params, adapter=None) for params in BOTH]
    drafted = dict(draft={"lm": whole}, method="lm", nodes=4)
    found = answers(base, [*BOTH, *alone], adapters={"a": folder}, **drafted)
    adapted, plain = found[:4], found[4:]
    assert tokens(adapted) == tokens(answers(whole, alone, method="none"))
    assert tokens(adapted) != tokens(plain)
    assert sum(one.stats.accepted for one in adapted) > 80


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", SETTINGS)
def test_text_is_that_of_the_merged_model(name, tmp_path):
    same_text("llama-gqa", tmp_path, **SETTINGS[name])


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", KINDS)
def test_text_is_that_of_the_merged_model_of_each_kind(kind, tmp_path):
    conv1d = kind == "gpt2"
    same_text(kind, tmp_path, target_modules=KINDS[kind], fan_in_fan_out=conv1d)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_are_near_those_of_peft_unmerged(dtype, tmp_path):
    base = tiny_models.build("llama").to(dtype)
    adapted = tiny_lora.save(base, tmp_path, 1)
    text = torch.randint(320, (40,)).tolist()
    with torch.inference_mode():
        expected = adapted(torch.tensor([text])).logits[0].float()
    adapters = {"a": tmp_path}
    with LLM(base, tokenizer=False, adapters=adapters, backend="pool") as llm:
        llm.target.open(1, 64)
        llm.target.give(1, llm.target.adapters["a"])
        found = llm.target.read([Read(1, 0, text, keep=40)]).float()
    error = (found - expected).abs().max() / expected.std()
    assert error < (1e-4 if dtype == torch.float32 else 0.2)


def test_hidden_states_are_those_of_the_adapted_rows(tmp_path):
    base = tiny_models.build("llama")
    adapted = tiny_lora.save(base, tmp_path, 1)
    text = list(range(20, 40))
    with torch.inference_mode():
        run: Any = adapted
        expected = run(torch.tensor([text]), output_hidden_states=True).hidden_states[1]
    with LLM(base, tokenizer=False, adapters={"a": tmp_path}) as llm:
        llm.target.open(1, 64)
        llm.target.open(2, 64)
        llm.target.give(2, llm.target.adapters["a"])
        reads = [Read(1, 0, text), Read(2, 0, text)]
        plain, found = llm.target.read_hidden(reads, (1,))[1].split(20)
    torch.testing.assert_close(found, expected[0], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(plain, found, atol=1e-2)


def int8_checkpoint(folder: Path) -> Path:
    tiny_models.build("llama").save_pretrained(folder)
    quantizing.int8(folder)
    return folder


def gguf_file(folder: Path) -> Path:
    plain = gguf_files.small(folder)
    return gguf_files.quantized(plain, folder / "small.gguf", "Q8_0")


@pytest.mark.parametrize("quantized", [int8_checkpoint, gguf_file])
def test_a_quantized_checkpoint_is_adapted_as_its_weights_are_read(quantized, tmp_path):
    (tmp_path / "base").mkdir()
    source = quantized(tmp_path / "base")
    base = load_weights(source, read_config(source), torch.float32)
    drop_codes(base)
    whole = tiny_lora.merged(tiny_lora.save(base, tmp_path / "a", 1))
    plain = [replace(params, adapter=None) for params in BOTH]
    expected = answers(whole, plain, method="none")
    adapters = {"a": tmp_path / "a"}
    drafted = dict(draft={"lm": whole}, method="lm", nodes=4)
    found = answers(str(source), [*BOTH], dtype="float32", adapters=adapters, **drafted)
    assert tokens(found) == tokens(expected)
    assert sum(one.stats.accepted for one in found) > 40
