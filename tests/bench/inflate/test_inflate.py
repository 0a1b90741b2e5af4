"""An inflated model has the logits of the small one, and the sizes of its shape."""

import copy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as hf

import starter
from foreword import LLM, SamplingParams, bundled
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword_lab.bench.inflate.model import (
    SHAPES,
    Shape,
    inflate,
    shape_of,
)
from grids import slow_case
from tiny_sizes import sizes

WIDE = Shape(
    "wide", hidden=576, layers=10, heads=16, kv_heads=8, head_dim=64, intermediate=1280
)
READERS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Shell command: list every file in a folder, the largest first",
    "Tom has 12 apples and gives 5 of them to Ann. How many are left?",
)


@pytest.fixture(scope="module")
def target() -> hf.LlamaForCausalLM:
    return hf.AutoModelForCausalLM.from_pretrained(
        starter.target(), dtype=torch.float32, local_files_only=True
    ).eval()


@pytest.fixture(scope="module")
def prompts() -> list[torch.Tensor]:
    tokenizer = hf.AutoTokenizer.from_pretrained(
        starter.target(), local_files_only=True
    )
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    texts = [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        for chat in chats
    ]
    return [tokenizer(text, return_tensors="pt").input_ids for text in texts]


@pytest.fixture(scope="module")
def large(target) -> hf.LlamaForCausalLM:
    return inflate(target, WIDE)


@pytest.fixture(scope="module")
def expected(target, prompts) -> torch.Tensor:
    """The logits of the small model."""
    return logits(target, prompts)


def tiny(**options) -> hf.LlamaForCausalLM:
    """Three query heads to a kv head, weights large enough that attention matters."""
    config = hf.LlamaConfig(
        **sizes(48, 64, 6, 2, 2),
        vocab_size=97,
        head_dim=16,
        initializer_range=0.3,
        **options,
    )
    return hf.LlamaForCausalLM(config).eval()


@torch.no_grad()
def logits(model: hf.LlamaForCausalLM, prompts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([model(prompt).logits[0].float() for prompt in prompts])


def greedy(model: hf.LlamaForCausalLM, prompt: torch.Tensor) -> list[int]:
    mask = torch.ones_like(prompt)
    return model.generate(
        prompt, attention_mask=mask, do_sample=False, max_new_tokens=24
    )[0].tolist()


def assert_close(new: torch.Tensor, old: torch.Tensor) -> None:
    assert (new - old).abs().max() <= 1e-4 * old.abs().max()


# A larger and a smaller group than the target's two, besides that of WIDE; make
# test-all runs the others.
@pytest.mark.parametrize(
    ("heads", "kv_heads"),
    [
        (9, 3),
        (12, 12),
        *(slow_case(*pair) for pair in ((6, 3), (8, 4))),
        slow_case(16, 4),
    ],
)
def test_logits_stay_with_other_groups(target, prompts, expected, heads, kv_heads):
    large = inflate(target, replace(WIDE, heads=heads, kv_heads=kv_heads))
    assert_close(logits(large, prompts), expected)


NAMED = (slow_case(SHAPES[name]) for name in ("llama-110m", "llama-350m"))


@pytest.mark.parametrize("shape", [WIDE, *NAMED], ids=lambda shape: shape.name)
def test_logits_and_greedy_text_stay(target, prompts, expected, shape):
    large = inflate(target, shape)
    assert_close(logits(large, prompts), expected)
    assert [greedy(large, prompt) for prompt in prompts] == [
        greedy(target, prompt) for prompt in prompts
    ]


def test_norms_are_exact_at_four_times_the_hidden_size():
    small = tiny().bfloat16()
    torch.nn.init.uniform_(small.model.norm.weight, 0.5, 2.0)
    large = inflate(small, replace(shape_of(small.config), hidden=4 * 48))
    assert torch.equal(large.model.norm.weight[:48] * 2, small.model.norm.weight)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("llama-110m", 91.2),
        ("llama-350m", 291.6),
        ("llama-1b", 989.9),
        ("llama-8b", 7013.1),
    ],
)
def test_named_shapes_have_the_size_of_their_name(name, millions):
    shape = SHAPES[name]
    attention = 2 * shape.hidden * (shape.heads + shape.kv_heads) * shape.head_dim
    layer = attention + 3 * shape.hidden * shape.intermediate + 2 * shape.hidden
    assert (shape.layers * layer + 8193 * shape.hidden) / 1e6 == pytest.approx(
        millions, abs=0.1
    )


def test_no_logit_depends_on_the_padding(target, large, prompts):
    other = inflate(target, WIDE, seed=1)
    padding = [
        model.model.layers[0].self_attn.q_proj.weight[:, 384:]
        for model in (large, other)
    ]
    assert not torch.equal(*padding)
    assert torch.equal(logits(large, prompts[:1]), logits(other, prompts[:1]))


def test_padding_of_reading_matrices_is_dense(large):
    for name, weight in large.named_parameters():
        if name.split(".")[-2] in READERS:
            assert (weight[:, 384:] != 0).float().mean() > 0.999, name


def test_saved_model_loads_with_the_same_logits(tmp_path):
    small = tiny(tie_word_embeddings=True)
    prompt = [torch.randint(97, (1, 30))]
    shape = replace(shape_of(small.config), hidden=96, layers=3)
    inflate(small, shape).save_pretrained(tmp_path)
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    assert loaded.dtype == torch.float32
    assert_close(logits(loaded, prompt), logits(small, prompt))


def test_zeros_of_added_layers_are_no_incomplete_download(tmp_path):
    small = tiny(tie_word_embeddings=True)
    large = inflate(small, replace(shape_of(small.config), layers=3))
    large.save_pretrained(tmp_path)
    written = large.model.layers[2].self_attn.o_proj.weight
    assert not written.any()
    loaded = Model.load(tmp_path, device="cpu", dtype="float32")
    loaded.open(1, 8)
    found = loaded.read([Read(1, 0, list(range(8)), keep=8)])
    assert_close(found, logits(small, [torch.arange(8)[None]]))


def test_model_and_random_state_are_untouched():
    model = tiny()
    model.generation_config.max_new_tokens = 7
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    large = inflate(
        model,
        Shape(
            "x", hidden=96, layers=3, heads=6, kv_heads=2, head_dim=16, intermediate=80
        ),
    )
    large.generation_config.max_new_tokens += 1
    assert model.generation_config.max_new_tokens == 7
    assert large.generation_config.max_new_tokens == 8
    assert torch.equal(torch.get_rng_state(), state)
    assert all(
        torch.equal(weight, before[name]) for name, weight in model.state_dict().items()
    )
    assert model.config.hidden_size == 48


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 128}, "head_dim must stay 64"),
        ({"hidden": 256}, "hidden must be at least 384"),
        ({"layers": 7}, "layers must be at least 8"),
        ({"intermediate": 1000}, "intermediate must be at least 1024"),
        ({"heads": 12, "kv_heads": 5}, "multiple of kv_heads"),
        ({"heads": 7, "kv_heads": 7}, "multiple of heads"),
        ({"heads": 4, "kv_heads": 4}, "kv_heads must be at least 6"),
        ({"heads": 8, "kv_heads": 2}, "kv_heads must be at least 3"),
    ],
)
def test_too_small_shape_is_refused(target, change, message):
    with pytest.raises(ModelError, match=message):
        inflate(target, replace(WIDE, **change))
    with pytest.raises(ModelError, match="biases"):
        inflate(tiny(attention_bias=True), replace(WIDE, head_dim=16))


SCRIPT = Path(__file__).parents[3] / "recipes" / "inflate.py"


@pytest.mark.slow
def test_enlarged_checkpoint_writes_the_same_text(tmp_path):
    subprocess.run(
        [sys.executable, SCRIPT, "llama-110m", tmp_path / "large"], check=True
    )
    models = [
        LLM(source, dtype="float32", method="none")
        for source in (bundled.target(), tmp_path / "large")
    ]
    small, large = (
        llm.generate(
            "The capital of France is", SamplingParams(temperature=0, max_tokens=24)
        )
        for llm in models
    )
    assert large[0].tokens == small[0].tokens
    assert models[1].target.parameters > 3 * models[0].target.parameters
