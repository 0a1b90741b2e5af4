"""Multi-token-prediction layers of every family's checkpoints load, and draft."""

from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file

import quantizing.floats
from foreword import LLM, SamplingParams
from foreword.draft import resolved
from foreword.draft.mtp.mtp_checkpoint import available
from foreword.draft.tree.drafter import CHUNK
from foreword.errors import ModelError
from mtp_families import FAMILIES, LAYERS, PROMPTS, write

SETTINGS = (
    SamplingParams(temperature=0, max_tokens=24),
    SamplingParams(temperature=1.0, seed=5, max_tokens=24),
)


LONG = {"max_position_embeddings": 1024}
SLOW = ("qwen3.5-moe", "mellum")
"""Families whose layout another one has too."""


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in FAMILIES
    ],
)
def test_published_layers_draft_and_change_no_text(name, tmp_path):
    family = FAMILIES[name]
    folder = write(family, tmp_path)
    assert available(folder, LAYERS)
    llm = LLM(folder, method="mtp", tokenizer=False, dtype=family.dtype, nodes=4)
    for params in SETTINGS:
        plain = llm.generate(list(PROMPTS), replace(params, method="none"))
        found = llm.generate(list(PROMPTS), params)
        assert [one.tokens for one in found] == [one.tokens for one in plain]
        assert sum(one.stats.accepted for one in found) > 0


def test_several_layers_draft_one_token_each(tmp_path):
    folder = write(FAMILIES["mimo"], tmp_path)
    llm = LLM(folder, method="mtp", tokenizer=False, dtype="float32", nodes=8)
    params = SamplingParams(temperature=0, max_tokens=24)
    (answer,) = llm.generate([PROMPTS[1]], params)
    assert answer.stats.accepted > 0
    assert 1 < len(answer.stats.accepted_at) <= FAMILIES["mimo"].count


@pytest.mark.parametrize("name", ["llama", "mimo"])
def test_long_texts_are_read_in_parts(name, tmp_path):
    """More than one forward reads the prompt, and only the last one has logits."""
    family = replace(FAMILIES[name], config={**FAMILIES[name].config, **LONG})
    llm = LLM(
        write(family, tmp_path), method="mtp", tokenizer=False, dtype="float32", nodes=4
    )
    prompt = PROMPTS[2] * 16
    params = SamplingParams(temperature=0, max_tokens=12)
    (plain,) = llm.generate([prompt], replace(params, method="none"))
    (found,) = llm.generate([prompt], params)
    assert len(prompt) > CHUNK
    assert found.tokens == plain.tokens
    assert found.stats.accepted > 0


def test_target_that_brings_layers_drafts_with_them(tmp_path):
    folder = write(FAMILIES["llama"], tmp_path)
    how = {"tokenizer": False, "dtype": "float32", "nodes": 4}
    llm = LLM(folder, **how)
    assert llm.method == "mtp"
    assert resolved("auto", None, str(folder)) == "auto(mtp, ngram, suffix)"
    (answer,) = llm.generate([PROMPTS[1]], SETTINGS[0])
    assert answer.stats.accepted > 0
    # a conversion often drops the layers, and keeps their number in the config
    file = folder / "model.safetensors"
    kept = {
        name: one
        for name, one in load_file(file).items()
        if not name.startswith(f"model.layers.{LAYERS}.")
    }
    save_file(kept, file, {"format": "pt"})
    assert LLM(folder, **how).method == "ngram"
    with pytest.raises(ModelError, match="holds no layers of multi-token prediction"):
        LLM(folder, method="mtp", **how)


def test_quantized_checkpoint_keeps_its_layers(tmp_path):
    folder = write(FAMILIES["llama"], tmp_path)
    quantizing.floats.fp8(folder, 16)
    names = load_file(folder / "model.safetensors")
    assert f"model.layers.{LAYERS}.eh_proj.weight_scale_inv" in names
    llm = LLM(folder, tokenizer=False, dtype="float32", nodes=4)
    assert llm.method == "mtp"
    (plain,) = llm.generate([PROMPTS[1]], replace(SETTINGS[0], method="none"))
    (found,) = llm.generate([PROMPTS[1]], SETTINGS[0])
    assert found.tokens == plain.tokens
    assert found.stats.accepted > 0
