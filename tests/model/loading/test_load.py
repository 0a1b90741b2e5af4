"""Loading: how large a model is, and the errors where one cannot be loaded."""

import pytest
import torch
import transformers as hf

import starter
import tiny_models
from folders import configured
from foreword.errors import ModelError
from foreword.model import Mode, Model, Read, load_tokenizer
from foreword.native import compiler, forward
from grids import NEEDS_C, slow_case


@pytest.mark.parametrize("dtype", ["auto", "float32", slow_case("float16")])
def test_parameters_are_counted_before_they_are_packed(dtype):
    assert (
        Model.load(starter.target(), dtype=dtype, device="cpu").parameters == 16_128_384
    )


def test_cut_weights_are_refused(copied):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    with pytest.raises(ModelError, match=r"^cannot load .*model': .+\. Give a folder"):
        Model.load(copied)


@pytest.mark.filterwarnings("ignore")
def test_weights_of_another_size_are_refused(copied):
    with pytest.raises(ModelError, match="cannot load the weights of"):
        Model.load(configured(copied, intermediate_size=400))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("the first line:\nthe second"), "first line. Give a folder"),
        (ImportError("needs a package"), "needs a package. Give a folder"),
        (RuntimeError("\n"), "RuntimeError. Give a folder"),
        (torch.OutOfMemoryError("no memory"), "does not fit on cpu: no memory"),
        (ModelError("said already"), "^said already$"),
    ],
)
def test_every_failure_says_what_to_do(monkeypatch, error, said):
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(hf.AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(ModelError, match=said):
        Model.load(starter.draft(), device="cpu")


@pytest.mark.parametrize("source", ["/no/such/folder", "./none", "~/no/such/folder"])
def test_tokenizer_of_a_missing_folder_is_refused(source):
    with pytest.raises(ModelError, match=f"tokenizer from {source}: no such folder"):
        load_tokenizer(source)


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"nowhere': no such folder exists\. Give one"):
        Model.load(tmp_path / "nowhere")


@pytest.mark.parametrize("device", ["nonsense", "cuda:77", ""])
def test_a_device_that_is_not_here_is_refused(device):
    """Some of these torch calls a RuntimeError, some an AssertionError."""
    with pytest.raises(ModelError, match=f"cannot use device '{device}': .*Use 'auto'"):
        Model.load(starter.draft(), device=device)


@pytest.fixture
def slow_bfloat16(monkeypatch):
    """Have torch see a processor that does not multiply bfloat16."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=NEEDS_C)])
def test_text_of_a_vision_model_is_read(tmp_path, dtype):
    made = tiny_models.mistral3()
    made.eval().save_pretrained(tmp_path)
    model = Model.load(tmp_path, dtype=dtype, device="cpu")
    assert model.mode == Mode.TREE
    assert model.capability.backend == ("native" if dtype == "bfloat16" else "pool")
    model.open(1, 64)
    found = model.read([Read(1, 0, list(range(20)), keep=20)])
    tokens = torch.arange(20)[None]
    with torch.inference_mode():
        truth = made(tokens).logits[0]
    assert (found - truth).std() < (0.1 if dtype == "bfloat16" else 1e-4) * truth.std()


@NEEDS_C
def test_native_models_are_bfloat16_on_any_processor(slow_bfloat16):
    model = Model.load(starter.target(), device="cpu")
    assert (model.dtype, model.capability.backend) == (torch.bfloat16, "native")
    assert (
        Model.load(starter.draft(), device="cpu", backend="pool").dtype == torch.float32
    )
    model = Model.load(starter.draft(), device="cpu", backend="native")
    assert model.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["llama", "deepseek-v3"])
def test_other_models_are_float32_without_bfloat16(slow_bfloat16, tmp_path, name):
    """The first is of a kind that is read in C, but not with such biases."""
    model = tiny_models.build(name)
    if name == "llama":
        model = hf.LlamaForCausalLM(
            hf.LlamaConfig(**{**model.config.to_dict(), "mlp_bias": True})
        )
    model.save_pretrained(tmp_path)
    model = Model.load(tmp_path, device="cpu")
    assert (model.dtype, model.capability.backend) == (torch.float32, "pool")


def test_models_are_float32_without_a_compiler(slow_bfloat16, monkeypatch):
    monkeypatch.setenv("CC", "/nonexistent")
    monkeypatch.setattr(forward, "library", forward.library.__wrapped__)
    monkeypatch.setattr(compiler, "_warned", set())  # once per process otherwise
    with pytest.warns(RuntimeWarning, match="is off and PyTorch computes instead"):
        assert Model.load(starter.draft(), device="cpu").dtype == torch.float32
