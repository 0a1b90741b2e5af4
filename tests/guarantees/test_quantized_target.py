"""Targets with weights of 8 and 4 bits: the quantized model is the target, and drafting does not change its text."""

import pytest
import torch

import tiny_models
from foreword import LLM, SamplingParams, bundled
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Model, Read
from foreword.native import forward
from running import prompts

pytestmark = pytest.mark.skipif(forward.reason() is not None, reason=f"no native kernel here: {forward.reason()}")
METHODS = ["ngram", "suffix", "recycle", "lookahead", "lm", "eagle", "dspark", "layers", "tli", "fuse", "cascade"]
KINDS = ["llama-gqa", "qwen3", "gemma3", "lfm2", "qwen3.5", "qwen2-moe", "gpt-neox"]


@pytest.fixture(scope="module", params=["int8", "int4"])
def llm(request) -> LLM:
    return LLM(weights=request.param)


def answers(llm: LLM, temperature: float, method: str, **how: object) -> list:
    params = SamplingParams(temperature=temperature, seed=7, max_tokens=40, ignore_eos=True, method=method, **how)
    return llm.generate([list(prompt) for prompt in prompts()[:3]], params)


@pytest.mark.parametrize(
    ("method", "temperature"), [(name, 0.7) for name in METHODS] + [(name, 0.0) for name in ("suffix", "lm", "layers")]
)
def test_every_method_leaves_the_text_unchanged(llm, method, temperature):
    plain, drafted = answers(llm, temperature, "none"), answers(llm, temperature, method, nodes=4)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert all(one.undrafted is None for one in drafted)
    assert sum(one.stats.accepted for one in drafted) > 0


def test_its_scores_are_near_those_of_bfloat16_and_not_the_same(llm):
    most = {"int8": 0.005, "int4": 0.2}[llm.target.weights]
    assert f"weights='{llm.target.weights}'" in repr(llm)
    tokens, scores = list(prompts()[0]), []
    for model in (llm.target, Model.load(bundled.target(), dtype="bfloat16", device="cpu")):
        model.open(9, 100)
        scores.append(model.read([Read(9, 0, tokens, keep=len(tokens))]).log_softmax(-1))
        model.close(9)
    ours, whole = scores
    assert 0 < (whole.exp() * (whole - ours)).sum(-1).mean() < most  # KL divergence, nats


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("name", KINDS)
def test_rows_keep_their_bits_in_every_kind_of_model(name, weights):
    model = Model(tiny_models.build(name).to(torch.bfloat16), weights=weights)
    tokens = [token % tiny_models.VOCAB for prompt in prompts() for token in prompt][:40]
    model.open(1, 100)
    together = model.read([Read(1, 0, tokens, keep=8)])
    model.close(1)
    model.open(2, 100)
    model.read([Read(2, 0, tokens[:32], keep=0)])
    one_by_one = torch.cat([model.read([Read(2, 32 + i, [tokens[32 + i]])]) for i in range(8)])
    assert torch.equal(one_by_one, together)


def test_a_model_in_memory_can_be_quantized_and_stays_as_it_was():
    hf = tiny_models.build("llama-gqa").to(torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in hf.state_dict().items()}
    llm = LLM(hf, tokenizer=bundled.target(), weights="int8")
    assert llm.target.weights == "int8"
    assert all(torch.equal(before[name], tensor) for name, tensor in hf.state_dict().items())


def test_what_does_not_go_together_is_refused():
    with pytest.raises(InvalidRequest, match="weights='int3': choose one of int8, int4"):
        LLM(weights="int3")
    with pytest.raises(InvalidRequest, match="Leave 'dtype' and 'backend' out"):
        LLM(weights="int8", dtype="float32")
    with pytest.raises(InvalidRequest, match="Leave 'dtype' and 'backend' out"):
        LLM(weights="int8", backend="pool")
    with pytest.raises(InvalidRequest, match="its own weights are held in few bits"):
        LLM(weights="int8", method="quantized")


def test_a_model_that_the_native_backend_does_not_run_is_refused():
    hf = tiny_models.build("llama-gqa")  # float32
    with pytest.raises(ModelError, match="only backend 'native' multiplies by them"):
        LLM(hf, tokenizer=bundled.target(), weights="int8")
