"""A Gemma 4 assistant drafts from the target's KV cache, and changes no text."""

from dataclasses import replace

import pytest
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4TextConfig,
)

from foreword import LLM, SamplingParams
from foreword.draft.mtp.mtp import MtpDrafter
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.types import Request
from mtp_families import HIDDEN, PROMPTS, VOCAB
from tiny_sizes import NO_ENDS

pytestmark = pytest.mark.skipif(
    transformers.__version__ == "5.23.0",
    reason="transformers 5.23.0 builds no Gemma 4 assistant",
)
KINDS = ["sliding_attention", "full_attention"]
SIZES = dict(
    vocab_size=VOCAB,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    global_head_dim=16,
    num_global_key_value_heads=2,
    sliding_window=12,
    max_position_embeddings=256,
    **NO_ENDS,
)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma")
    config = Gemma4TextConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=4,
        layer_types=KINDS * 2,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB,
        **SIZES,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def assistant(tmp_path_factory):
    return made(tmp_path_factory.mktemp("assistant"), HIDDEN)


def made(folder, backbone: int):
    text = Gemma4TextConfig(
        hidden_size=32,
        num_hidden_layers=2,
        layer_types=KINDS,
        use_double_wide_mlp=False,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        **SIZES,
    )
    config = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=backbone)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        Gemma4AssistantForCausalLM(config).save_pretrained(folder)
    return folder


def test_assistant_drafts_and_changes_no_text(target, assistant):
    how = {"tokenizer": False, "dtype": "float32", "nodes": 6}
    llm = LLM(target, draft=assistant, **how)
    assert llm.method == "mtp"
    for heat in (0.0, 1.5):
        params = SamplingParams(temperature=heat, seed=3, max_tokens=24)
        plain = llm.generate(list(PROMPTS), replace(params, method="none"))
        found = llm.generate(list(PROMPTS), params)
        assert [one.tokens for one in found] == [one.tokens for one in plain]
        assert sum(one.stats.drafted for one in found) > 0


def test_draft_tokens_have_the_scores_of_transformers(target, assistant):
    """The plain definition: transformers' assistant on the target's keys and values."""
    model = Model.load(target, dtype="float32")
    drafter = MtpDrafter.load(assistant, model, None)
    tokens = PROMPTS[2]
    one = Request(1, tokens, 4, SamplingParams(max_tokens=20), seed=0)
    model.open(1, 64)
    text = Read(1, 0, tokens[:-1], keep=0)
    _, states = model.read_hidden([text], drafter.hidden_layers)
    drafter.on_hidden_states(one, 0, states)
    found = drafter.logits([drafter.prefill(one)])
    hf = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    ours = Gemma4AssistantForCausalLM.from_pretrained(assistant, dtype=torch.float32)
    with torch.no_grad():
        out = hf(
            torch.tensor([tokens[:-1]]),
            output_hidden_states=True,
            return_shared_kv_states=True,
        )
        embedded = hf.get_input_embeddings()(torch.tensor([tokens[-1:]]))
        inputs = torch.cat([embedded, out.hidden_states[-1][:, -1:]], -1)
        place = torch.tensor([[len(tokens) - 1]])
        truth = ours.eval()(
            inputs_embeds=inputs,
            position_ids=place,
            shared_kv_states=dict(out.shared_kv_states),
        )
    torch.testing.assert_close(found, truth.logits[0], atol=1e-4, rtol=1e-4)


def test_assistant_of_another_target_is_refused(target, tmp_path):
    model = Model.load(target, dtype="float32")
    other = made(tmp_path, 96)
    with pytest.raises(ModelError, match="backbone_hidden_size is 96 and the target"):
        MtpDrafter.load(other, model, None)
