"""A model in memory is as good as its folder; what is no model is refused."""

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import starter
from foreword import LLM, SamplingParams
from foreword.errors import InvalidRequest, ModelError
from foreword.model.executors.native.supported import refused
from foreword.model.loading.in_memory import twin
from tiny_models import differing

ASKED = SamplingParams(temperature=0.8, seed=5, max_tokens=24)
PROMPT = "The capital of France is"
NOWHERE = "/no/such/folder"


def loaded(dtype: torch.dtype = torch.float32):
    return AutoModelForCausalLM.from_pretrained(starter.target(), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_in_memory_has_the_text_of_its_folder(dtype):
    hf = AutoModelForCausalLM.from_pretrained(starter.draft(), dtype=dtype).train()
    ids = torch.arange(10)[None]
    before = {name: weight.clone() for name, weight in hf.state_dict().items()}
    kinds = [type(module) for module in hf.modules()]
    logits, attention = hf(ids).logits, hf.config._attn_implementation
    llm = LLM(hf, draft=starter.draft())
    got = llm.generate(PROMPT, ASKED)[0]
    name = str(dtype).removeprefix("torch.")
    plain = LLM(starter.draft(), dtype=name, method="none")
    assert got.text == plain.generate(PROMPT, ASKED)[0].text
    assert got.stats.accepted > 0
    assert hf.training
    assert hf.config._attn_implementation == attention
    assert [type(module) for module in hf.modules()] == kinds
    assert differing(before, hf.state_dict()) == []
    assert torch.equal(hf(ids).logits, logits)


def test_a_twin_shares_every_weight_and_no_module():
    hf = loaded()
    made = twin(hf)
    ours, theirs = (
        {tensor.data_ptr() for tensor in model.state_dict().values()}
        for model in (hf, made)
    )
    assert ours == theirs
    assert not {*map(id, hf.modules())} & {*map(id, made.modules())}


def test_its_tokenizer_may_be_given():
    hf = AutoModelForCausalLM.from_pretrained(starter.draft(), dtype=torch.bfloat16)
    hf.config.name_or_path = ""
    with pytest.raises(InvalidRequest, match=r"find the tokenizer.*Give tokenizer="):
        LLM(hf)
    folder = starter.target()
    for tokenizer in (AutoTokenizer.from_pretrained(folder), folder):
        assert LLM(hf, tokenizer=tokenizer).generate(PROMPT, ASKED)[0].text


def test_loaded_model_is_taken_as_it_is():
    llm = LLM(starter.target(), method="none")
    assert LLM(llm.target, method="none").target is llm.target


@pytest.mark.parametrize(
    "target", [3, [starter.target()], {}, "", nn.Linear(2, 2), "base"]
)
def test_what_is_no_model_is_no_target(unchecked, target):
    target = AutoModel.from_pretrained(starter.draft()) if target == "base" else target
    with pytest.raises(InvalidRequest, match=r"must be a folder|it has no LM head"):
        LLM(target)


@pytest.mark.parametrize(
    "draft", [3, 0, False, [starter.draft()], "", nn.Linear(2, 2), "base", {"lm": 3}]
)
def test_what_is_no_model_is_no_draft(unchecked, draft):
    draft = AutoModel.from_pretrained(starter.draft()) if draft == "base" else draft
    method = "cascade(suffix, lm)" if isinstance(draft, dict) else None
    with pytest.raises(InvalidRequest, match=r"must be a folder|it has no LM head"):
        LLM(NOWHERE, draft=draft, method=method)


def test_a_model_in_memory_is_not_cast_or_moved():
    with pytest.raises(InvalidRequest, match=r"a model in memory. Move it"):
        LLM(loaded(), dtype="bfloat16")


def test_a_model_in_memory_must_hold_numbers():
    hf = loaded()
    hf.model.norm.weight.data[0] = float("nan")
    with pytest.raises(ModelError, match=r"norm.weight holds NaN or infinite numbers"):
        LLM(hf)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tokenizer": 7}, "'tokenizer' must be a tokenizer of transformers.*, got 7"),
        ({"dtype": "float99"}, "'dtype' must be 'auto' or one of"),
        ({"dtype": None}, "'dtype' must be 'auto' or one of"),
        ({"device": "nowhere"}, "cannot use device 'nowhere'"),
        ({"backend": "fast"}, "cannot use backend='fast'"),
        ({"rule": "coin"}, "coin"),
        ({"method": "lmm"}, "no such method exists"),
        ({"budget": "broad"}, "broad"),
        ({"nodes": -1}, "nodes must be"),
        ({"slots": 0}, "slots"),
        ({"chunk": 0}, "chunk"),
    ],
)
def test_bad_options_are_refused_before_a_model_is_loaded(unchecked, options, said):
    with pytest.raises((InvalidRequest, ModelError, ValueError), match=said):
        LLM(NOWHERE, **options)


@pytest.mark.parametrize(
    "form", [{"weights": "int8"}, {"weights": "int4"}, {"kv": "int8"}], ids=str
)
def test_float32_in_memory_is_quantized_as_its_folder(form):
    given = AutoModelForCausalLM.from_pretrained(starter.draft(), dtype=torch.float32)
    before = {name: weight.clone() for name, weight in given.state_dict().items()}
    params = SamplingParams(temperature=0, max_tokens=12)
    texts = []
    for target in (given, starter.draft()):
        with LLM(target, tokenizer=starter.draft(), method="none", **form) as llm:
            assert llm.target.capability.backend == "native"
            texts.append(llm.generate("The little dog", params)[0].tokens)
    assert texts[0] == texts[1]
    assert differing(before, given.state_dict()) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reason_against_native_is_the_same_in_every_dtype(dtype):
    given = AutoModelForCausalLM.from_pretrained(starter.draft(), dtype=dtype)
    given.config.clip_qkv = 8.0
    assert refused(given) == "its config sets clip_qkv, which is not supported"
