"""Targets with weights or a KV cache in few bits: drafts leave the text as it is."""

import pytest
import torch

import tiny_models
from foreword import LLM, SamplingParams, bundled
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Model, Read
from foreword.model.kv.limit import key_bytes
from grids import NEEDS_C
from running import check_drafts, pool_bytes, prompts

pytestmark = NEEDS_C
METHODS = "ngram suffix recycle lookahead lm eagle dspark layers tli cascade".split()
KINDS = ["llama-gqa", "qwen3", "gemma3", "lfm2", "qwen3.5", "qwen2-moe", "gpt-neox"]
WEIGHTS, KV = {"weights": "int8"}, {"kv": "int8"}
BITS = [WEIGHTS, dict(weights="int4"), KV, WEIGHTS | KV]
FORMS = pytest.mark.parametrize("form", BITS, ids=str)


@pytest.fixture(scope="module", params=BITS, ids=str)
def llm(request) -> LLM:
    return LLM(**request.param)


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    ("method", "temperature"),
    [(name, 0.7) for name in METHODS]
    + [(name, 0.0) for name in ("suffix", "lm", "layers")],
)
def test_every_method_leaves_the_text_unchanged(llm, method, temperature):
    check_drafts(llm, method, temperature)


def test_int8_weights_draft_for_int8_keys_and_values():
    # its draft model shares keys and values with the target
    check_drafts(LLM(kv="int8", method="quantized"), "quantized", 0.7)


@FORMS
def test_scores_are_near_those_of_bfloat16_but_not_equal(form):
    llm = LLM(**form)
    for name in ("weights", "kv"):
        assert getattr(llm.target, name) == form.get(name)
        assert (f"{name}={form.get(name)!r}" in repr(llm)) == (name in form)
    tokens, scores = list(prompts()[0]), []
    plain = Model.load(bundled.target(), dtype="bfloat16", device="cpu")
    for model in (llm.target, plain):
        model.open(9, 100)
        scores.append(model.read([Read(9, 0, tokens, keep=len(tokens))]))
        model.close(9)
    ours, whole = (one.log_softmax(-1) for one in scores)
    divergence = (whole.exp() * (whole - ours)).sum(-1).mean()  # KL, nats
    # Weights of 4 bits are farther away than those of 8 ever are.
    low, high = (0.005, 0.2) if form.get("weights") == "int4" else (0, 0.005)
    assert low < divergence < high


@pytest.mark.sample(3)
@FORMS
@pytest.mark.parametrize("name", KINDS)
def test_rows_keep_their_bits_in_every_kind_of_model(name, form):
    model = Model(tiny_models.build(name).to(torch.bfloat16))
    model.quantize(**form)
    words = [token for prompt in prompts() for token in prompt]
    tokens = [token % tiny_models.VOCAB for token in words[:40]]
    model.open(1, 100)
    together = model.read([Read(1, 0, tokens, keep=8)])
    model.close(1)
    model.open(2, 100)
    model.read([Read(2, 0, tokens[:32], keep=0)])
    steps = [Read(2, place, [tokens[place]]) for place in range(32, 40)]
    assert torch.equal(torch.cat([model.read([one]) for one in steps]), together)
    model.open(3, 100)
    for i in range(5):
        part = Read(3, 7 * i, tokens[7 * i : 7 * i + 7])
        beside = model.read([part, Read(2, 40 + i, [5])])[:1]
    assert torch.equal(beside, together[2:3])  # position 34


def test_keys_and_values_take_about_half_of_the_memory():
    options = (dict(kv=None), dict(kv="int8"))
    models = [Model.load(bundled.target(), dtype="bfloat16", **kv) for kv in options]
    for model in models:
        model.open(1, 400)
        model.read([Read(1, 0, [7] * 300, keep=0)])
    whole, coded = (model.backend.pool for model in models)
    config = models[0].hf.config
    heads = 2 * config.num_hidden_layers * config.num_key_value_heads
    size = config.head_dim
    assert coded.row_bytes == key_bytes(models[1].hf, "int8") == heads * (size + 4)
    assert pool_bytes(coded) == coded.count * 64 * coded.row_bytes
    assert coded.count == whole.count
    assert pool_bytes(coded) / pool_bytes(whole) == (size + 4) / (2 * size) < 0.54


def test_kept_int8_keys_and_values_are_those_computed_anew():
    tokens = [(7919 * number + 13) % 8192 for number in range(150)]
    model = Model.load(bundled.target(), kv="int8")
    model.open(1, 200, tokens)
    fresh = model.read([Read(1, 0, tokens, keep=10)])
    model.close(1)
    assert model.open(2, 200, tokens) == 128  # two pages
    assert torch.equal(model.read([Read(2, 128, tokens[128:], keep=10)]), fresh)
    other = [*tokens[:100], *tokens[:50]]
    assert model.open(3, 200, other) == 64
    # a shared page is copied first
    copied = model.read([Read(2, 100, other[100:], keep=10)])
    assert torch.equal(model.read([Read(3, 64, other[64:], keep=10)]), copied)


def test_preempted_int8_texts_stay_the_same():
    params = SamplingParams(temperature=0.7, seed=3, max_tokens=64, ignore_eos=True)
    first = [list(prompt) for prompt in prompts()[:4]]
    free, scarce = (
        LLM(kv="int8", method="ngram", cache_tokens=tokens) for tokens in (None, 256)
    )
    expected = [one.tokens for one in free.generate(first, params)]
    found = scarce.generate(first, params)
    assert [one.tokens for one in found] == expected
    assert scarce.engine.load.preemptions > 0


def test_more_tokens_fit_into_the_same_memory():
    whole, coded = (LLM(kv=kv).target for kv in (None, "int8"))
    assert coded.cache_tokens > 1.5 * whole.cache_tokens


def test_model_in_memory_can_be_quantized_and_stays_unchanged():
    hf = tiny_models.build("llama-gqa").to(torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in hf.state_dict().items()}
    llm = LLM(hf, tokenizer=bundled.target(), weights="int8", kv="int8")
    assert llm.target.weights == llm.target.kv == "int8"
    assert tiny_models.differing(before, hf.state_dict()) == []


@pytest.mark.parametrize(("name", "forms"), [("weights", "int8, int4"), ("kv", "int8")])
def test_what_does_not_go_together_is_refused(name, forms):
    with pytest.raises(InvalidRequest, match=f"{name}='int3': choose one of {forms}"):
        LLM(**{name: "int3"})
    with pytest.raises(InvalidRequest, match="Leave 'dtype' and 'backend' out"):
        LLM(**{name: "int8"}, dtype="float32")
    with pytest.raises(InvalidRequest, match="Leave 'dtype' and 'backend' out"):
        LLM(**{name: "int8"}, backend="pool")
    with pytest.raises(InvalidRequest, match=r"Give them to Model\.load"):
        LLM(Model.load(bundled.target()), **{name: "int8"})


def test_int8_weights_are_not_drafted_for_with_fewer_bits():
    with pytest.raises(InvalidRequest, match="its own weights are quantized"):
        LLM(weights="int8", method="quantized")


@pytest.mark.parametrize(
    ("name", "what"), [("weights", "weights"), ("kv", "keys and values")]
)
def test_model_that_native_does_not_run_is_refused(name, what):
    hf = tiny_models.build("deepseek-v3")
    words = f"the {what} of .*only backend 'native'.* reads them.*Leave '{name}' out"
    with pytest.raises(ModelError, match=words):
        LLM(hf, tokenizer=bundled.target(), **{name: "int8"})
