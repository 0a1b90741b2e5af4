"""Adapters in C: near the merged model in every form of weights, and rows without an
adapter as they are alone.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import tiny_lora
import tiny_models
from foreword import LLM, SamplingParams
from foreword.errors import ModelError
from foreword.model import Model, Read
from grids import NEEDS_C

pytestmark = NEEDS_C
TEXT = [(7 * place * place + 3) % 300 + 5 for place in range(40)]
PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]
SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "llama-gqa": dict(target_modules=SEVEN, rank_pattern={"k_proj": 3, "up_proj": 7}),
    "gpt2": dict(target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True),
    "phi3": dict(target_modules=["qkv_proj", "gate_up_proj"]),
    "gpt-neox": dict(target_modules=["query_key_value", "dense_h_to_4h"]),
    "cohere": dict(target_modules=SEVEN, use_rslora=True),
    "mixtral": dict(target_modules=["q_proj", "o_proj"]),
}
FORMS = (dict(), dict(weights="int8"), dict(weights="int4", kv="int8"))


def scores(target: Model, adapter: str | None, parts: int = 1) -> Tensor:
    """The logits after each token of TEXT, read in so many forwards."""
    target.open(1, 64)
    if adapter is not None:
        target.give(1, target.adapters[adapter])
    size = len(TEXT) // parts
    starts = range(0, len(TEXT), size)
    reads = [Read(1, at, TEXT[at : at + size], keep=size) for at in starts]
    return torch.cat([target.read([read]) for read in reads]).float()


def own_scores(model: Any) -> Tensor:
    with torch.inference_mode():
        return model(torch.tensor([TEXT])).logits[0]


def apart(found: Tensor, expected: Tensor) -> float:
    """The typical deviation, in standard deviations."""
    return float((found - expected).square().mean().sqrt() / expected.std())


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_merged_model(kind, tmp_path, registers):
    base = tiny_models.build(kind).bfloat16().float()
    adapted = tiny_lora.save(base, tmp_path, 1, **KINDS[kind])
    plain, merged = own_scores(base), own_scores(tiny_lora.merged(adapted))
    with LLM(base.bfloat16(), tokenizer=False, adapters={"a": tmp_path}) as llm:
        assert llm.target.capability.backend == "native"
        assert apart(scores(llm.target, "a"), merged) < 0.1 < 0.5 < apart(plain, merged)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_scores_of_each_form_are_near_and_keep_their_bits(form, tmp_path, registers):
    base = tiny_models.build("llama-gqa").bfloat16()
    base.save_pretrained(tmp_path / "base")
    source = str(tmp_path / "base")
    adapted = tiny_lora.save(base.float(), tmp_path / "a", 1, 0.1, target_modules=SEVEN)
    plain, merged = own_scores(base.float()), own_scores(tiny_lora.merged(adapted))
    with LLM(source, tokenizer=False, **form) as llm:
        alone = scores(llm.target, None)
    adapters = {"a": tmp_path / "a"}
    with LLM(source, tokenizer=False, adapters=adapters, **form) as llm:
        found = scores(llm.target, "a")
        for parts in (1, 2, 8, 40):
            assert torch.equal(scores(llm.target, "a", parts), found)
            assert torch.equal(scores(llm.target, None, parts), alone)
        llm.target.open(1, 64)
        llm.target.open(2, 64)
        llm.target.give(2, llm.target.adapters["a"])
        reads = [Read(number, 0, TEXT, keep=len(TEXT)) for number in (1, 2)]
        together = llm.target.read(reads).float()
    assert torch.equal(together, torch.cat([alone, found]))
    rounding = apart(alone, plain)
    assert apart(found, merged) < min(2 * rounding, 0.9 * apart(alone, merged))


def test_drafted_text_is_that_of_the_merged_model(tmp_path):
    base = tiny_models.build("gemma3").bfloat16()
    adapted = tiny_lora.save(base.float(), tmp_path, 1, target_modules=SEVEN)
    whole: Any = tiny_lora.merged(adapted)
    params = SamplingParams(temperature=0, max_tokens=48)
    with LLM(whole, tokenizer=False, method="none", backend="pool") as llm:
        (expected,) = llm.generate([PROMPT], params)
    options: dict[str, Any] = dict(draft={"lm": whole}, method="lm", nodes=4)
    options |= dict(tokenizer=False, adapters={"a": tmp_path})
    with LLM(base.bfloat16(), backend="native", **options) as llm:
        (answer,) = llm.generate([PROMPT], replace(params, adapter="a"))
    assert answer.tokens == expected.tokens
    assert answer.stats.accepted > 20


def test_layers_that_c_adds_nothing_to_take_pool_with_the_reason(tmp_path):
    base = tiny_models.build("qwen2-moe").bfloat16()
    tiny_lora.save(base, tmp_path, 1, target_modules=["shared_expert.up_proj"])
    options: dict[str, Any] = dict(tokenizer=False, adapters={"a": tmp_path})
    with (
        pytest.warns(UserWarning, match=r"adapted on backend 'pool': .*shared_expert"),
        LLM(base, **options) as llm,
    ):
        assert llm.target.capability.backend == "pool"
    with pytest.raises(ModelError, match=r"adds nothing to .*shared_expert"):
        LLM(base, backend="native", **options)
