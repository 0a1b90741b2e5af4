"""Weights taken out of a model and put into it, on every backend; and the checkpoint
that is written.
"""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import starter
import tiny_models
from foreword.errors import InvalidRequest, ModelError
from foreword.model import Model, Read, load_tokenizer
from foreword.model.weights import copied, replace, save
from foreword.native.forward import library

BOTH = ["family", "llama-gqa", "qwen2", "qwen3", "gpt2"]
"""Tied weights, shared key heads, biases, norms of queries and keys; and layers that
are not linear ones of torch's.
"""
EXTENDED = "llama-gqa, three tokens more"
PACKED = [
    "gemma",
    "gemma3",
    "phi3",
    "olmo2",
    "granite",
    "qwen3.5",
    "lfm2",
    "qwen2-moe",
    "cohere",
    "gpt-neox",
    "phi",
    EXTENDED,
]
"""Norms that count from 1 or come after a half, joined matrices, states, experts, heads
in another order, more biases: of interest where C reads them."""
CASES = [
    *((kind, dtype) for kind in BOTH for dtype in (torch.float32, torch.bfloat16)),
    *((kind, torch.bfloat16) for kind in PACKED),
]
TEXT = [5, 90, 23, 7, 61, 44, 30, 2, 19]


def built(kind: str, dtype: torch.dtype):
    if kind == "family":
        return AutoModelForCausalLM.from_pretrained(starter.draft(), dtype=dtype).eval()
    model = (
        tiny_models.extended("llama-gqa")
        if kind == EXTENDED
        else tiny_models.build(kind)
    )
    return model.to(dtype).eval()


def read(model: Model, id: int = 1):
    model.open(id, 64)
    try:
        return model.read([Read(id, 0, TEXT, keep=len(TEXT))]).float().clone()
    finally:
        model.close(id)


def check_copy(model: Model, wanted: dict[str, torch.Tensor]) -> None:
    """A copy has the weights of the model, and can be trained."""
    before = torch.get_rng_state()
    made = copied(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert made.state_dict().keys() == wanted.keys()
    for name, weight in made.state_dict().items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, wanted[name].float()), name
    assert all(parameter.requires_grad for parameter in made.parameters())


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_model_reads_with_the_weights_put_into_it(kind, dtype):
    other, hf = built(kind, dtype), built(kind, dtype)
    first = {name: weight.clone() for name, weight in hf.state_dict().items()}
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    new = copy.deepcopy(other).float()
    wanted = read(Model(other))
    model = Model(hf)
    check_copy(model, first)
    was = read(model)
    addresses = [held.data_ptr() for held in getattr(model.backend, "_held", ())]
    replace(model, new)
    assert torch.equal(read(model, 2), wanted)
    assert not torch.equal(was, wanted)
    assert [
        held.data_ptr() for held in getattr(model.backend, "_held", ())
    ] == addresses
    check_copy(
        model, {name: weight.to(dtype) for name, weight in new.state_dict().items()}
    )


@pytest.mark.skipif(
    isinstance(library(), str), reason=f"no native kernel here: {library()}"
)
def test_bundled_model_is_native():
    assert Model(built("family", torch.bfloat16)).capability.backend == "native"


def test_weights_that_are_nowhere_to_be_found_are_missed():
    hf = built("llama-gqa", torch.float32)
    model = Model(hf)
    hf.model.norm.weight = torch.nn.Parameter(torch.empty(0))
    with pytest.raises(ModelError, match=r"norm\.weight"):
        copied(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_saved_is_a_checkpoint_that_loads(tmp_path, dtype):
    model, tokenizer = (
        Model.load(starter.draft(), dtype=dtype),
        load_tokenizer(starter.target()),
    )
    made = copied(model)
    with torch.no_grad():
        made.model.layers[0].mlp.up_proj.weight.mul_(2)
    replace(model, made)
    save(model, tmp_path / "new" / "draft", tokenizer)
    found = AutoModelForCausalLM.from_pretrained(
        tmp_path / "new" / "draft", dtype="auto"
    )
    assert found.dtype == dtype
    assert all(
        torch.equal(found.state_dict()[name].float(), weight)
        for name, weight in made.state_dict().items()
    )
    assert (
        found.generation_config.eos_token_id == model.hf.generation_config.eos_token_id
    )
    assert (
        AutoTokenizer.from_pretrained(tmp_path / "new" / "draft").get_vocab()
        == tokenizer.get_vocab()
    )
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["draft"]
    with pytest.raises(InvalidRequest, match="exists already"):
        save(model, tmp_path / "new" / "draft", tokenizer)


def test_a_folder_is_not_there_where_writing_failed(tmp_path, monkeypatch):
    def full(folder):
        raise OSError("no space left on device")

    model, tokenizer = (
        Model.load(starter.draft(), dtype="float32"),
        load_tokenizer(starter.target()),
    )
    monkeypatch.setattr(tokenizer, "save_pretrained", full)
    with pytest.raises(OSError, match="no space"):
        save(model, tmp_path / "draft", tokenizer)
    assert list(tmp_path.iterdir()) == []
