"""The bundled models and heads load, share a tokenizer, and have licences."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from asking import user
from foreword import LLM, SamplingParams, bundled
from foreword.model.loading.checkpoint import Checkpoint

HEADS = {"dspark": 7_081_793, "eagle": 6_162_432, "medusa": 525_312}
"""Method -> numbers that are learnt."""
QUESTION = [
    user("Extract the booking slots as JSON: a table for four at noon, please.")
]


def test_both_models_load_and_have_the_sizes_the_card_says():
    sizes = {}
    for folder in (bundled.target(), bundled.draft()):
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, local_files_only=True
        )
        sizes[folder.name] = sum(parameter.numel() for parameter in model.parameters())
    assert sizes == {"target": 26_223_104, "draft": 4_654_848}


@pytest.mark.parametrize("method", HEADS)
def test_a_head_has_the_size_the_card_says(method):
    found = Checkpoint.read(bundled.head(method)).tensors
    assert (
        sum(tensor.numel() for tensor in found.values() if tensor.is_floating_point())
        == HEADS[method]
    )
    assert f"{HEADS[method]:,}" in (bundled.target().parent / "CARD.md").read_text(
        encoding="utf-8"
    )


def test_for_other_methods_no_head_ships():
    assert bundled.head("dflash") is None


@pytest.fixture(scope="module")
def plain():
    return LLM(method="none")


@pytest.mark.parametrize("method", HEADS)
def test_a_method_finds_its_head_and_keeps_the_text(method, plain):
    with LLM(method=method, nodes=6) as llm:
        for temperature in (0.0, 0.8):
            params = SamplingParams(
                temperature=temperature, seed=1, max_tokens=24, ignore_eos=True
            )
            expected = plain.chat(QUESTION, params).tokens
            for name in (None, f"cascade(suffix, {method})"):
                found = llm.chat(QUESTION, replace(params, method=name))
                assert found.tokens == expected, name
                assert found.stats.accepted >= 4, name


def test_the_tokenizer_is_shared_byte_for_byte():
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (bundled.target() / name).read_bytes() == (
            bundled.draft() / name
        ).read_bytes()


def test_all_that_ships_stays_below_100_megabytes():
    assert (
        sum(
            file.stat().st_size
            for file in bundled.target().parent.rglob("*")
            if file.is_file()
        )
        < 100e6
    )


def test_the_chat_template_is_the_one_the_card_describes():
    tokenizer = AutoTokenizer.from_pretrained(bundled.draft(), local_files_only=True)
    message = [user("Hello")]
    text = tokenizer.apply_chat_template(
        message, add_generation_prompt=True, tokenize=False
    )
    assert text == "<|user|>\nHello<|end|>\n<|assistant|>\n"
    assert tokenizer.eos_token_id == tokenizer("<|end|>").input_ids[0] == 0


def test_card_and_attribution_travel_with_the_weights():
    folder = bundled.target().parent
    assert "26,223,104" in (folder / "CARD.md").read_text(encoding="utf-8")
    assert "CC-BY-SA-4.0" in (folder / "ATTRIBUTION.md").read_text(encoding="utf-8")
