"""EAGLE-3 heads as files of other engines, and what is said of misfits."""

import pytest
import torch

from folders import configured
from foreword.draft.heads.eagle import EagleDrafter
from foreword.draft.heads.eagle_checkpoint import dump
from foreword.draft.heads.eagle_model import EagleHead
from foreword.draft.heads.eagle_published import load
from foreword.draft.heads.reader import TargetStates
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Model
from foreword.model.loading.checkpoint import Checkpoint
from foreword.types import Request, SamplingParams
from foreword_train.methods.eagle import new
from foreword_train.registry import EagleOptions
from pair import VOCAB, llama, setting

LAYERS = 8
NAMES = {
    *(
        "fc.weight norm.weight lm_head.weight d2t t2d "
        "midlayer.input_layernorm.weight midlayer.hidden_norm.weight "
        "midlayer.post_attention_layernorm.weight"
    ).split(),
    *(f"midlayer.self_attn.{part}_proj.weight" for part in "qkvo"),
    *(f"midlayer.mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
}
"""What vLLM's and SGLang's loaders of LlamaForCausalLMEagle3 look for."""


@pytest.fixture(scope="module")
def target():
    return llama(0, layers=LAYERS)


@pytest.fixture
def head(target) -> EagleHead:
    return new(setting(target), EagleOptions(draft_vocab=200))


@pytest.fixture
def folder(head, target, tmp_path):
    dump(head, torch.float32, target.config).write(tmp_path)
    return tmp_path


def test_it_is_written_as_other_engines_read_it(folder, target):
    found = Checkpoint.read(folder)
    assert set(found.tensors) == NAMES
    assert {
        name: list(tensor.shape)
        for name, tensor in found.tensors.items()
        if "proj" not in name
    } == {
        "fc.weight": [32, 96],
        "norm.weight": [32],
        "lm_head.weight": [200, 32],
        "d2t": [200],
        "t2d": [VOCAB],
        "midlayer.input_layernorm.weight": [32],
        "midlayer.hidden_norm.weight": [32],
        "midlayer.post_attention_layernorm.weight": [32],
    }
    assert found.tensors["midlayer.self_attn.q_proj.weight"].shape == (32, 64)
    assert found.tensors["midlayer.self_attn.k_proj.weight"].shape == (16, 64)
    assert found.tensors["d2t"].dtype == torch.int64
    assert found.tensors["t2d"].dtype == torch.bool
    wanted = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "draft_vocab_size": 200,
        "hidden_size": 32,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "norm_before_residual": False,
    }
    assert wanted.items() <= dict(found.config).items()
    assert "eagle_aux_hidden_state_layer_ids" not in found.config, (
        "2, 4, 5 of 8 are what every engine takes anyway"
    )
    assert load(folder, target.config).config.states == (2, 4, 5)


def test_unusual_states_are_written_for_both_engines(tmp_path):
    small = llama(0, layers=3)
    made = new(setting(small), EagleOptions())
    assert made.config.states == (1, 2, 3)
    dump(made, torch.float32, small.config).write(tmp_path)
    config = Checkpoint.read(tmp_path).config
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    assert load(tmp_path, small.config).config.states == (1, 2, 3)


def test_what_is_written_is_read(folder, head, target):
    again = load(folder, target.config)
    assert again.config.draft_vocab == 200
    for name, tensor in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_the_layout_of_speculators_is_read_too(folder, head, target):
    found = Checkpoint.read(folder)
    tensors = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in found.tensors.items()
    }
    tensors["embed_tokens.weight"] = torch.randn(VOCAB, 32)
    config = {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 200,
        "norm_before_residual": True,
        "transformer_layer_config": dict(found.config) | {"architectures": None},
    }
    Checkpoint("", config, tensors).write(folder)
    again = load(folder, target.config)
    assert again.config.embeds
    assert again.config.norm_before_residual
    assert torch.equal(
        again.midlayer.mlp.up_proj.weight, head.midlayer.mlp.up_proj.weight
    )
    assert torch.equal(again.embed_tokens.weight, tensors["embed_tokens.weight"])


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": None},
            "as a LlamaForCausalLMEagle3: its config names",
        ),
        ({"vocab_size": 64}, "vocab_size is 64 there and 320"),
        ({"fc_norm": True}, r"lacks fc_norm.0.weight"),
        ({"fc_norm": True, "norm_before_fc": True}, "exclude each other"),
        ({"num_hidden_layers": 2}, r"has 2 layers \(num_hidden_layers"),
        ({"model_type": "gemma2"}, "layer type 'gemma2' is not supported"),
        ({"draft_vocab_size": 100}, "is 100, and its lm_head.weight has 200 rows"),
        ({"speculators_model_type": "xpress", "architectures": []}, r"\['xpress'\]"),
        (
            {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "partial_rotary_factor": 0.5,
                }
            },
            "partial_rotary_factor in its config.json is 0.5",
        ),
        ({"eagle_aux_hidden_state_layer_ids": "2"}, "not a list of layers"),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 2]},
            "size of 2 hidden states is 96 there and 64",
        ),
        ({"hidden_size": 64}, "hidden_size is 64 there and 32"),
        ({"intermediate_size": 48}, r"mlp\.\w+_proj\.weight has the shape"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(folder, target, values, says):
    configured(folder, **values)
    with pytest.raises(ModelError, match=says):
        load(folder, target.config)


def test_tensors_that_are_missing_or_damaged_are_refused(folder, target):
    whole = Checkpoint.read(folder)
    for name in ("fc.weight", "midlayer.hidden_norm.weight", "d2t"):
        rest = {key: tensor for key, tensor in whole.tensors.items() if key != name}
        Checkpoint("", whole.config, rest).write(folder)
        with pytest.raises(ModelError, match=f"lacks {name}"):
            load(folder, target.config)
    Checkpoint(
        "", whole.config, {**whole.tensors, "d2t": torch.full((200,), 300)}
    ).write(folder)
    with pytest.raises(ModelError, match="d2t points outside"):
        load(folder, target.config)


def test_states_that_the_target_has_not_are_refused(folder, target):
    configured(folder, eagle_aux_hidden_state_layer_ids=[2, 4, 9])
    with pytest.raises(ModelError, match="states 0 to 8"):
        EagleDrafter.load(folder, Model(llama(0, layers=LAYERS)), None)
    with pytest.raises(InvalidRequest, match="needs a trained head"):
        EagleDrafter.load(Model(target), Model(llama(0, layers=LAYERS)), None)


@pytest.fixture
def six_tokens() -> Request:
    return Request(7, list(range(6)), 6, SamplingParams(), seed=0)


def rows(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32)[:, None]


def test_parts_become_one_and_what_was_read_is_forgotten(six_tokens):
    seen = TargetStates()
    seen.add(7, 0, rows(0, 1))
    assert not seen.up_to_date(six_tokens)
    seen.add(7, 2, rows(2, 3, 4))
    assert seen.up_to_date(six_tokens)
    assert seen.rows(7, 1, 3).flatten().tolist() == [1, 2, 3]
    seen.drop(7, 4)
    assert seen.rows(7, 4, 9).flatten().tolist() == [4]
    six_tokens.tokens.append(6)
    assert not seen.up_to_date(six_tokens)
    seen.add(7, 5, rows(5))
    assert seen.rows(7, 4, 9).flatten().tolist() == [4, 5]


def test_what_does_not_follow_is_not_taken_for_what_does(six_tokens):
    seen = TargetStates()
    seen.add(7, 1, rows(1, 2, 3, 4, 5))
    assert not seen.up_to_date(six_tokens)
    seen.forget(7)
    seen.forget(7)
    seen.add(7, 0, rows(0, 1, 2, 3, 4))
    assert seen.up_to_date(six_tokens)
