"""What cannot be computed exactly is refused with words, before any request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import tiny_lora
import tiny_models
import tiny_seq2seq
import tiny_vision
from folders import edit
from foreword import LLM, SamplingParams
from foreword.errors import ForewordError, InvalidRequest
from foreword.model import Model
from foreword.model.adapters.pool import LowRank

Q = "base_model.model.model.layers.0.self_attn.q_proj"
DOWN = "base_model.model.model.layers.1.mlp.down_proj"
UNREAD: dict[str, dict[str, Any]] = {
    "LOHA": dict(peft_type="LOHA"),
    "use_dora": dict(use_dora=True),
    "modules_to_save": dict(modules_to_save=["lm_head"]),
    "'bias' is 'all'": dict(bias="all"),
    "lora_bias": dict(lora_bias=True),
    "trainable_token_indices": dict(trainable_token_indices=[1]),
    "target_parameters": dict(target_parameters=["mlp.experts.gate_up_proj"]),
    "layer_replication": dict(layer_replication=[[0, 2], [1, 2]]),
    "alora_invocation_tokens": dict(alora_invocation_tokens=[3]),
    "pissa": dict(init_lora_weights="pissa"),
    "new_in_peft_9": dict(new_in_peft_9={"a": 1}),
    "damaged": dict(r="four"),
    "a rank is below 1": dict(r=0),
    "rank 8": dict(r=8),
    "and rank 2": dict(rank_pattern={"down_proj": 2}),
    "no weights for 'model.layers.0.self_attn.v_proj'": dict(
        target_modules=["q_proj", "v_proj", "down_proj"]
    ),
}
Change = Callable[[dict[str, Tensor]], object]
WEIGHTS: dict[str, Change] = {
    "is empty": lambda held: held.clear(),
    "one of the two matrices": lambda held: held.pop(f"{Q}.lora_B.weight"),
    "lora_magnitude_vector": lambda held: held.update(
        {f"{Q}.lora_magnitude_vector": torch.ones(64, dtype=torch.float32)}
    ),
    "lora_embedding_A": lambda held: held.update(
        {"base_model.model.model.embed_tokens.lora_embedding_A": torch.eye(4)}
    ),
    "no linear layer 'model.layers.7": lambda held: renamed(held, Q, "layers.7"),
    "no linear layer 'lm_head'": lambda held: added(held, "base_model.model.lm_head"),
    "no linear layer 'model.embed_tokens'": lambda held: added(
        held, "base_model.model.model.embed_tokens"
    ),
    "no linear layer 'model.layers.0.mlp'": lambda held: added(
        held, "base_model.model.model.layers.0.mlp"
    ),
    "4 x 64 x 1 x 1": lambda held: held.update(
        {f"{Q}.lora_A.weight": torch.ones(4, 64, 1, 1, dtype=torch.float32)}
    ),
    "and give 96, and this layer": lambda held: held.update(
        {f"{Q}.lora_B.weight": torch.ones(96, 4, dtype=torch.float32)}
    ),
    "NaN": lambda held: held[f"{DOWN}.lora_A.weight"].fill_(torch.nan),
}


def renamed(held: dict[str, Tensor], layer: str, number: str) -> None:
    for part in ("lora_A.weight", "lora_B.weight"):
        name = f"{layer}.{part}"
        held[name.replace("layers.0", number)] = held.pop(name)


def added(held: dict[str, Tensor], layer: str) -> None:
    for part in ("lora_A.weight", "lora_B.weight"):
        held[f"{layer}.{part}"] = held[f"{Q}.{part}"].clone()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An adapter of the tiny llama."""
    tiny_lora.save(tiny_models.build("llama"), tmp_path, 1)
    return tmp_path


@pytest.fixture
def refused(unchecked: None) -> Callable[..., str]:
    def refusing(model: object, adapters: Any, **options: Any) -> str:
        with pytest.raises(ForewordError, match=r"^cannot ") as error:
            LLM(model, tokenizer=False, adapters=adapters, **options)
        return str(error.value)

    return refusing


@pytest.mark.parametrize("words", UNREAD)
def test_settings_that_ask_for_more_are_refused(words, folder, refused):
    edit(folder / "adapter_config.json", **UNREAD[words])
    found = refused(tiny_models.build("llama"), {"a": folder})
    assert words in found
    assert str(folder) in found


@pytest.mark.parametrize("words", WEIGHTS)
def test_weights_that_do_not_fit_are_refused(words, folder, refused):
    file = folder / "adapter_model.safetensors"
    held = load_file(file)
    WEIGHTS[words](held)
    save_file(held, file)
    assert words in refused(tiny_models.build("llama"), {"a": folder})


def test_an_adapter_of_a_larger_model_is_refused(tmp_path, refused):
    tiny_lora.save(tiny_models.build("gemma3"), tmp_path, 1)
    found = refused(tiny_models.build("llama"), {"a": tmp_path})
    assert "no linear layer 'model.layers.2" in found


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"\xff{", b"[1]"])
def test_damaged_files_are_refused(file, content, folder, refused):
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    assert file in refused(tiny_models.build("llama"), {"a": folder})


def test_a_folder_that_does_not_exist_is_refused(tmp_path, refused):
    # before the target is looked for
    found = refused("/no/such/target", {"a": tmp_path / "none"}, method="ngram")
    assert "this folder does not exist" in found


@pytest.mark.parametrize("name", ["", " a", "a:lm", "a b", "a\0b", "-a"])
def test_names_that_requests_could_not_give_are_refused(name, folder, refused):
    found = refused(tiny_models.build("llama"), {name: folder})
    assert repr(name) in found


def test_other_backends_are_refused(folder, refused):
    found = refused(str(folder), {"a": folder}, method="ngram", backend="cache")
    assert "cannot use adapters with backend='cache'" in found


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: tiny_seq2seq.build("t5"), "is an encoder-decoder"),
        (lambda: tiny_vision.build("qwen2.5-vl"), "it reads images"),
        (lambda: tiny_models.build("lfm2"), "recurrent state"),
        (
            lambda: Model(tiny_models.build("llama").bfloat16(), backend="cache"),
            "it runs on backend 'cache'",
        ),
    ],
)
def test_targets_that_cannot_be_adapted_are_refused(model, words, folder, refused):
    assert words in refused(model(), {"a": folder})


def test_a_model_is_adapted_once(folder, refused):
    model = Model(tiny_models.build("llama"), backend="pool")
    with LLM(model, tokenizer=False, adapters={"a": folder}):
        assert "it has some already" in refused(model, {"b": folder})


def test_a_request_for_an_unknown_adapter_is_refused(folder):
    asked = SamplingParams(adapter="c")
    model = tiny_models.build("llama")
    with (
        LLM(model, tokenizer=False, adapters={"a": folder, "b": folder}) as llm,
        pytest.raises(InvalidRequest, match=r"has no adapter 'c'. Name one of a, b"),
    ):
        llm.generate([[1, 2, 3]], asked)
    with (
        LLM(model, tokenizer=False) as llm,
        pytest.raises(InvalidRequest, match=r"has no adapter 'c'. Give LLM\(adapters"),
    ):
        llm.generate([[1, 2, 3]], asked)


@pytest.mark.parametrize("adapter", ["", " ", 3])
def test_an_adapter_of_a_request_is_a_name(adapter, unchecked):
    with pytest.raises(InvalidRequest, match="adapter must be None or a name"):
        SamplingParams(adapter=adapter)


def test_an_adapter_whose_scores_depend_on_the_batch_is_refused(
    folder, refused, monkeypatch
):
    exact = LowRank.__call__

    def dependent(self: LowRank, x: Tensor) -> Tensor:
        return exact(self, x) + 1e-6 * len(x)

    monkeypatch.setattr(LowRank, "__call__", dependent)
    found = refused(tiny_models.build("llama"), {"a": folder})
    assert "depend on the other rows" in found
