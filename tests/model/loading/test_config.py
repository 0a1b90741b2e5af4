"""Config, generation settings and tokenizer files are checked before use."""

import json
import math
import shutil

import pytest

import starter
import tiny_models
from folders import configured
from foreword import LLM
from foreword.cli.inspect import _model
from foreword.errors import ModelError
from foreword.model import Model, load_tokenizer


@pytest.mark.parametrize("text", ["null", "[1]", '"text"', "3", "{", "", "[" * 100_000])
def test_a_config_that_is_no_object_is_refused(copied, text):
    (copied / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"(holds no JSON object|is not JSON)"):
        Model.load(copied, device="cpu")


SIZES = """
vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads
intermediate_size head_dim max_position_embeddings
""".split()


@pytest.mark.parametrize("value", ["12", 0, -1, 1.5, True])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_cannot_be_are_refused_by_name(copied, name, value):
    with pytest.raises(ModelError, match=f"{name} must be a whole number above 0, got"):
        Model.load(configured(copied, **{name: value}), device="cpu")


@pytest.mark.parametrize("value", [None, []])
def test_sizes_that_are_not_told_are_an_error_of_ours(copied, value):
    with pytest.raises(ModelError, match=r"'vocab_size'|vocab_size must be"):
        Model.load(configured(copied, vocab_size=value), device="cpu")


def yarn(factor, **more):
    return {"rope_type": "yarn", "factor": factor, **more}


def long(short_factor, long_factor):
    lists = dict(short_factor=short_factor, long_factor=long_factor)
    sizes = dict(factor=2.0, original_max_position_embeddings=64)
    return {"rope_type": "longrope", **sizes, **lists}


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        (yarn(0), "factor must be a finite number above 0, got 0"),
        (yarn(-2.0), "factor must be"),
        (yarn(math.nan), "factor must be"),
        (yarn("two"), "factor must be"),
        (yarn(2.0, original_max_position_embeddings=0), "original_max_position_embed"),
        ({"rope_type": "dynamic", "factor": math.inf}, "factor must be"),
        ({"rope_type": "linear", "factor": 0.0}, "factor must be"),
        ({"rope_type": "default", "rope_theta": -1.0}, "rope_theta must be"),
        ({"rope_type": "nonsense"}, "nonsense"),
        (long([1.0], [1.0]), "short_factor must be a list of 32 numbers.* got 1"),
        (long([1.0] * 32, [0.0] * 32), "long_factor must be a list of finite"),
        (long([1.0] * 32, [math.nan] * 32), "long_factor must be a list of finite"),
        ("text", "rope_parameters must be a table"),
    ],
)
def test_rotary_factors_that_cannot_be_are_refused(copied, rope, said):
    told = {"rope_theta": 10000.0, **rope} if isinstance(rope, dict) else rope
    with pytest.raises(ModelError, match=said):
        Model.load(configured(copied, rope_parameters=told), device="cpu")


def test_longrope_of_the_right_length_is_loaded(copied):
    rope = {**long([1.0] * 32, [2.0] * 32), "rope_theta": 10000.0}
    configured(copied, rope_parameters=rope)
    assert Model.load(copied, device="cpu").context == 1024


def test_a_dtype_that_torch_does_not_have_is_refused(copied):
    with pytest.raises(ModelError, match='dtypes, got "float99"'):
        Model.load(configured(copied, dtype="float99"), device="cpu")


@pytest.mark.parametrize("text", ["null", "[1]", "{", '{"max_new_tokens": -4}'])
def test_unreadable_generation_settings_are_ignored_with_a_warning(copied, text):
    (copied / "generation_config.json").write_text(text)
    with pytest.warns(UserWarning, match=r"generation_config\.json of .*ignored"):
        model = Model.load(copied, device="cpu")
    assert model.eos == {0}, "as config.json says"


@pytest.mark.parametrize("ids", ["x", 99999, [0, -1], [2.5, 0], {"a": 1}])
def test_ids_that_are_no_tokens_end_no_text(copied, ids):
    (copied / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    with pytest.warns(UserWarning, match="ignoring the end-of-text ids"):
        model = Model.load(copied, device="cpu")
    assert model.eos == ({0} if isinstance(ids, list) else set())


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["null", "[1]", "{", ""])
def test_a_tokenizer_that_is_damaged_is_refused_by_its_file(copied, name, text):
    (copied / name).write_text(text)
    with pytest.raises(ModelError, match=rf"{name} (holds no JSON object|is not JSON)"):
        load_tokenizer(copied)


@pytest.mark.parametrize("text", ["{}", '{"model": {"type": "BPE"}}'])
def test_a_tokenizer_without_its_parts_is_an_error_of_ours(copied, text):
    (copied / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match="cannot load a tokenizer from"):
        load_tokenizer(copied)


@pytest.mark.filterwarnings("ignore:.*runs in mode")
def test_a_model_whose_config_names_no_context_has_no_limit(tmp_path):
    tiny_models.build("mamba").save_pretrained(tmp_path)
    shutil.copy(starter.draft() / "tokenizer.json", tmp_path)
    shutil.copy(starter.draft() / "tokenizer_config.json", tmp_path)
    llm = LLM(tmp_path, dtype="float32", method="none")
    assert _model(llm, as_json=False)["context"] == "no limit"
    assert _model(llm, as_json=True)["context"] is None
