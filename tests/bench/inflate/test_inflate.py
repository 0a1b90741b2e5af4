"""A model that was inflated says what it said before, and is as big as it claims."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

import starter
from foreword.bench.inflate.model import SHAPES, Shape, inflate, query_slots
from foreword.errors import ModelError

STARTER = Shape(
    "starter", hidden=384, layers=8, heads=6, kv_heads=3, head_dim=64, intermediate=1024
)
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
def target() -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(
        starter.target(), dtype=torch.float32, local_files_only=True
    ).eval()


@pytest.fixture(scope="module")
def prompts() -> list[torch.Tensor]:
    tokenizer = AutoTokenizer.from_pretrained(starter.target(), local_files_only=True)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    texts = [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        for chat in chats
    ]
    return [tokenizer(text, return_tensors="pt").input_ids for text in texts]


def tiny(**options) -> LlamaForCausalLM:
    """Three query heads to a kv head, weights large enough that attention matters."""
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=0.3,
        **options,
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def logits(model: LlamaForCausalLM, prompts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([model(prompt).logits[0].float() for prompt in prompts])


def greedy(model: LlamaForCausalLM, prompt: torch.Tensor) -> list[int]:
    mask = torch.ones_like(prompt)
    return model.generate(
        prompt, attention_mask=mask, do_sample=False, max_new_tokens=24
    )[0].tolist()


def assert_close(new: torch.Tensor, old: torch.Tensor) -> None:
    assert (new - old).abs().max() <= 1e-4 * old.abs().max()


@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(6, 3), (8, 4), (9, 3), (12, 12), (16, 4)]
)
def test_logits_stay_whatever_the_grouping_of_heads(target, prompts, heads, kv_heads):
    large = inflate(target, replace(WIDE, heads=heads, kv_heads=kv_heads))
    assert_close(logits(large, prompts), logits(target, prompts))


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (8, 4), (6, 6), (16, 4)])
@pytest.mark.parametrize("tied", [True, False])
def test_groups_of_three_may_be_split_unevenly(heads, kv_heads, tied):
    model = tiny(tie_word_embeddings=tied)
    prompt = [torch.randint(97, (1, 30))]
    large = inflate(
        model,
        Shape(
            "x",
            hidden=96,
            layers=3,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=16,
            intermediate=80,
        ),
    )
    assert large.config.tie_word_embeddings == tied
    assert_close(logits(large, prompt), logits(model, prompt))


def test_query_heads_stand_under_a_copy_of_their_own_kv_head():
    slots, sources = query_slots(
        replace(STARTER, heads=6, kv_heads=2), replace(STARTER, heads=8, kv_heads=4)
    )
    assert slots.tolist() == [0, 1, 2, 4, 5, 6]
    assert sources.tolist() == [0, 0, 1, 1]


def test_greedy_text_is_the_same(target, prompts):
    large = inflate(target, WIDE)
    assert [greedy(large, prompt) for prompt in prompts] == [
        greedy(target, prompt) for prompt in prompts
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-110m", "llama-350m"])
def test_named_shapes_write_the_same_text(target, prompts, name):
    large = inflate(target, SHAPES[name])
    assert_close(logits(large, prompts), logits(target, prompts))
    assert [greedy(large, prompt) for prompt in prompts] == [
        greedy(target, prompt) for prompt in prompts
    ]


def test_bfloat16_names_the_same_token_almost_always(target, prompts):
    small = copy.deepcopy(target).bfloat16()
    large = inflate(small, WIDE)
    assert large.dtype == torch.bfloat16
    agreement = (
        (logits(large, prompts).argmax(-1) == logits(small, prompts).argmax(-1))
        .float()
        .mean()
    )
    assert agreement >= 0.95


def test_a_width_times_four_is_exact_in_every_norm(target):
    small = copy.deepcopy(target).bfloat16()
    large = inflate(small, replace(WIDE, hidden=4 * 384))
    assert torch.equal(large.model.norm.weight[:384] * 2, small.model.norm.weight)


def test_every_parameter_has_the_size_of_the_shape(target):
    sizes = {
        name: tuple(parameter.shape)
        for name, parameter in inflate(target, WIDE).named_parameters()
    }
    layer = {
        "self_attn.q_proj.weight": (1024, 576),
        "self_attn.k_proj.weight": (512, 576),
        "self_attn.v_proj.weight": (512, 576),
        "self_attn.o_proj.weight": (576, 1024),
        "mlp.gate_proj.weight": (1280, 576),
        "mlp.up_proj.weight": (1280, 576),
        "mlp.down_proj.weight": (576, 1280),
        "input_layernorm.weight": (576,),
        "post_attention_layernorm.weight": (576,),
    }
    expected = {
        f"model.layers.{index}.{name}": size
        for index in range(10)
        for name, size in layer.items()
    }
    assert sizes == expected | {
        "model.embed_tokens.weight": (8192, 576),
        "model.norm.weight": (576,),
    }


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("llama-110m", 91.2),
        ("llama-350m", 291.6),
        ("llama-1b", 989.9),
        ("llama-8b", 7013.1),
    ],
)
def test_named_shapes_weigh_what_their_names_say(name, millions):
    shape = SHAPES[name]
    attention = 2 * shape.hidden * (shape.heads + shape.kv_heads) * shape.head_dim
    layer = attention + 3 * shape.hidden * shape.intermediate + 2 * shape.hidden
    assert (shape.layers * layer + 8193 * shape.hidden) / 1e6 == pytest.approx(
        millions, abs=0.1
    )


def test_no_logit_depends_on_the_padding(target, prompts):
    one, two = inflate(target, WIDE, seed=1), inflate(target, WIDE, seed=2)
    padding = [
        model.model.layers[0].self_attn.q_proj.weight[:, 384:] for model in (one, two)
    ]
    assert not torch.equal(*padding)
    assert torch.equal(logits(one, prompts), logits(two, prompts))


@torch.no_grad()
def test_added_channels_stay_zero_and_the_others_stay_as_they_were(target, prompts):
    new = inflate(target, WIDE)(prompts[0], output_hidden_states=True).hidden_states
    old = target(prompts[0], output_hidden_states=True).hidden_states
    assert all(state[..., 384:].count_nonzero() == 0 for state in new)
    for index in range(STARTER.layers):
        assert_close(new[index][..., :384], old[index])


def test_what_reads_is_dense_so_no_kernel_can_skip_it(target):
    for name, weight in inflate(target, WIDE).named_parameters():
        if name.split(".")[-2] in READERS:
            assert (weight[:, 384:] != 0).float().mean() > 0.999, name


def test_saved_and_loaded_it_still_says_the_same(target, prompts, tmp_path):
    inflate(target, WIDE).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    assert loaded.dtype == torch.float32
    assert_close(logits(loaded, prompts), logits(target, prompts))


def test_neither_the_model_nor_the_callers_random_numbers_are_touched():
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
    assert (
        model.generation_config.max_new_tokens,
        large.generation_config.max_new_tokens,
    ) == (7, 8)
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
def test_a_shape_that_does_not_hold_the_model_is_refused(target, change, message):
    with pytest.raises(ModelError, match=message):
        inflate(target, replace(WIDE, **change))


def test_biases_are_refused():
    with pytest.raises(ModelError, match="biases"):
        inflate(tiny(attention_bias=True), replace(WIDE, head_dim=16))


def test_it_is_built_where_the_model_lies_and_nowhere_else(target):
    """Without a GPU at hand: on the device that holds no numbers, where 13 GB can be
    built in any memory.
    """
    large = inflate(
        copy.deepcopy(target).to("meta", torch.bfloat16), SHAPES["llama-8b"]
    )
    assert {(weight.device.type, weight.dtype) for weight in large.parameters()} == {
        ("meta", torch.bfloat16)
    }
    assert 6.5e9 < large.num_parameters() < 8e9
