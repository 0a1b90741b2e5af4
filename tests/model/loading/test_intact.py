"""Weights other than the config's are refused by name, of models and heads."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import starter
import tiny_models
from folders import configured
from foreword import LLM, SamplingParams, bundled
from foreword.draft import method
from foreword.draft.heads.dflash import DFlashHead
from foreword.draft.heads.masked import Layout
from foreword.errors import ModelError
from foreword.model import Model
from foreword.model.head_layers import Qwen3Config
from foreword.model.loading.complete import check_finite
from foreword.model.quantized.write import write
from tiny_sizes import sizes

LAYER = "model.layers.0.mlp.up_proj.weight"
Edit = Callable[[dict[str, Tensor]], object]


def changed(folder: Path, edit: Edit) -> Path:
    """The folder, its tensors edited."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def weights_of(folder: Path) -> dict[str, Tensor]:
    return Model.load(folder, device="cpu", dtype="float32").hf.state_dict()


def renamed(tensors: dict[str, Tensor]) -> None:
    for name in list(tensors):
        tensors[name.removeprefix("model.")] = tensors.pop(name)


def adding(name: str, *shape: int) -> Edit:
    return lambda tensors: tensors.update({name: torch.ones(*shape or (2,))})


def filling(value: float) -> Edit:
    return lambda tensors: tensors[LAYER][3, 4].fill_(value)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda tensors: tensors.pop(LAYER), f"it lacks {LAYER}"),
        (adding("strange"), "it holds strange, which its config has no place for"),
        (adding(LAYER, 2, 2), rf"{LAYER} has the shape \[2, 2\], not \[384, 128\]"),
        (filling(float("nan")), f"{LAYER} holds NaN or infinite numbers"),
        (filling(float("-inf")), f"{LAYER} holds NaN or infinite numbers"),
    ],
    ids=["missing", "unexpected", "mismatched", "NaN", "infinite"],
)
def test_odd_tensor_of_a_model_is_named(copied, edit, said):
    with pytest.raises(ModelError, match=said):
        Model.load(changed(copied, edit), device="cpu", dtype="float32")


@pytest.mark.parametrize("name", [LAYER, "model.embed_tokens.weight"])
def test_a_matrix_of_zeros_is_refused_as_incomplete(copied, name):
    changed(copied, lambda tensors: tensors[name].zero_())
    with pytest.raises(ModelError, match=f"all numbers of {name} are zero, so the"):
        Model.load(copied, device="cpu")


def test_matrix_of_zeros_runs_from_memory(copied):
    changed(copied, lambda tensors: tensors[LAYER].zero_())
    llm = LLM(AutoModelForCausalLM.from_pretrained(copied), method="none")
    assert llm.generate("a", SamplingParams(max_tokens=1))[0].tokens


@pytest.mark.parametrize("form", ["int4", "int8"])
def test_a_quantized_matrix_of_zeros_is_refused_as_incomplete(tmp_path, form):
    write(starter.draft(), tmp_path / "model", form)
    changed(tmp_path / "model", lambda tensors: tensors[LAYER + "_scale"].zero_())
    with pytest.raises(ModelError, match=f"all numbers of {LAYER} are zero, so the"):
        Model.load(tmp_path / "model", device="cpu")


@pytest.mark.parametrize(
    "edit",
    [
        lambda tensors: tensors[LAYER][3:].zero_(),
        lambda tensors: tensors["model.embed_tokens.weight"][-9:].zero_(),
        lambda tensors: tensors["model.layers.0.input_layernorm.weight"].zero_(),
        lambda tensors: tensors[LAYER].copy_(tensors[LAYER] - tensors[LAYER].flip(0)),
    ],
    ids=["outputs", "padding", "a norm", "numbers whose sum is zero"],
)
def test_rows_and_vectors_of_zeros_are_loaded(copied, edit):
    assert Model.load(changed(copied, edit), device="cpu").vocab


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        (99, r"it lacks model\.layers\.10\..* and 870 more"),
        (1, r"it holds model\.layers\.1\."),
    ],
)
def test_a_config_of_more_or_fewer_layers_is_refused(copied, layers, said):
    with pytest.raises(ModelError, match=said):
        Model.load(configured(copied, num_hidden_layers=layers), device="cpu")


@pytest.mark.parametrize(
    "edit",
    [
        renamed,
        adding("model.layers.0.self_attn.rotary_emb.inv_freq", 32),
        lambda tensors: tensors.update(
            {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
        ),
        adding("vision_tower.encoder.weight"),
    ],
    ids=["without a prefix", "an old table", "a head that is tied", "eyes"],
)
def test_tensors_not_used_for_text_do_not_matter(copied, edit):
    found = weights_of(changed(copied, edit))
    assert tiny_models.differing(weights_of(starter.draft()), found) == []


def test_only_vision_weights_may_be_missing(tmp_path):
    made = tiny_models.mistral3()
    made.save_pretrained(tmp_path)

    def blind(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if "vision" in name]:
            del tensors[name]

    changed(tmp_path, blind)
    model = Model.load(tmp_path, dtype="float32", device="cpu")
    assert model.vocab == tiny_models.VOCAB
    names = sorted(load_file(tmp_path / "model.safetensors"))
    last = next(name for name in names if name.endswith("up_proj.weight"))
    changed(tmp_path, lambda tensors: tensors.pop(last))
    with pytest.raises(ModelError, match=r"it lacks .*up_proj\.weight"):
        Model.load(tmp_path, dtype="float32", device="cpu")


def test_numbers_too_large_for_a_dtype_are_refused(copied):
    changed(copied, lambda tensors: tensors[LAYER][3, 4].fill_(1e6))
    with pytest.raises(ModelError, match=r"NaN or infinite .*use dtype='float32'"):
        Model.load(copied, device="cpu", dtype="float16")
    assert Model.load(copied, device="cpu", dtype="float32").dtype == torch.float32


def test_config_may_name_another_dtype(copied):
    configured(copied, dtype="float16")
    model = Model.load(copied, device="cpu", dtype="float32")
    assert model.dtype == torch.float32


@cache
def family_target() -> Model:
    return Model.load(bundled.target(), device="cpu", dtype="float32")


def head(name: str, folder: Path) -> Path:
    """A head of the family that ships, or an untrained one for it."""
    if shipped := bundled.head(name):
        return Path(shutil.copytree(shipped, folder, dirs_exist_ok=True))
    config = family_target().hf.config
    more = dict(vocab_size=config.vocab_size, head_dim=32)
    made = Qwen3Config(**sizes(config.hidden_size, 96, 2, 2, 1, **more))
    layout = Layout(made, (1, 2), 4, 3, sample_from_anchor=False)
    DFlashHead(layout).dump(torch.float32).write(folder)
    return folder


@pytest.mark.parametrize("name", ["eagle", "dflash", "dspark", "medusa"])
def test_odd_tensor_of_a_head_is_named(name, tmp_path):
    def load(edit: Edit) -> None:
        method(name).load(
            changed(head(name, tmp_path / "head"), edit), family_target(), None
        )

    load(lambda tensors: None)
    tensors = load_file(head(name, tmp_path / "head") / "model.safetensors")
    odd = next(
        odd
        for odd, tensor in reversed(tensors.items())
        if tensor.dim() == 2 and tensor.is_floating_point()
    )
    with pytest.raises(ModelError, match=f"lacks {odd}"):
        load(lambda tensors: tensors.pop(odd))
    with pytest.raises(ModelError, match="strange, which its config has no place for"):
        load(lambda tensors: tensors.update(strange=torch.ones(2)))
    with pytest.raises(ModelError, match=f"{odd} holds NaN or infinite numbers"):
        load(lambda tensors: tensors[odd][0, 0].fill_(float("nan")))


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("head", [False, True])
def test_pickled_weights_that_hold_code_are_refused_and_not_run(copied, head):
    (copied / "model.safetensors").unlink()
    torch.save({"weight": Evil(copied / "ran")}, copied / "pytorch_model.bin")
    if head:
        configured(copied, architectures=["MedusaModel"], medusa_num_heads=2)
    with pytest.raises(ModelError, match=r"\(\.bin\) is damaged.*safetensors"):
        method("medusa").load(copied, family_target(), None) if head else Model.load(
            copied, device="cpu"
        )
    assert not (copied / "ran").exists()


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def test_pickled_tensors_are_read(copied):
    pickled(copied)
    kept = weights_of(starter.draft())
    assert tiny_models.differing(kept, weights_of(copied)) == []


ONE_FILE = '{"weight_map": {"a": "one.safetensors"}}'


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (ONE_FILE, "names one.safetensors, which does not exist"),
        ('{"weight_map": null}', "names no files"),
        ("null", "holds no JSON object"),
        ("{", "is not JSON"),
    ],
)
def test_an_index_of_files_that_are_not_there_is_named(copied, index, said):
    (copied / "model.safetensors").unlink()
    (copied / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=rf"model\.safetensors\.index\.json {said}"):
        Model.load(copied, device="cpu")


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where transformers begins to build a model with storage."""

    def build(*_: object, **_more: object) -> object:
        raise AssertionError("a model was built")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", build)


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize("weights", [None, "int4"])
@pytest.mark.parametrize(
    ("size", "said"),
    [
        ({"hidden_size": 10**6}, (r"the shape \[\d+, 128\], not \[\d+, 1000000\]")),
        ({"vocab_size": 10**9}, (r"shape \[\d+, 128\], not \[1000000000, 128\]")),
        ({"intermediate_size": 10**9}, r"shape \[128, 384\], not \[128, 1000000000\]"),
        ({"num_hidden_layers": 50_000}, "is 50000, and its files hold 20 tensors"),
        ({"num_hidden_layers": 10**9}, "at most 100000, got 1000000000"),
    ],
    ids=["width", "vocabulary", "MLP", "layers", "very many layers"],
)
def test_sizes_beyond_the_files_are_refused_before_anything_is_built(
    copied, size, said, weights
):
    with pytest.raises(ModelError, match=said):
        Model.load(configured(copied, **size), device="cpu", weights=weights)


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize("edit", [lambda folder: changed(folder, renamed), pickled])
def test_sizes_beyond_the_bytes_of_files_are_refused(copied, edit):
    edit(copied)
    said = r"its config asks for \d+ numbers, and its files have \d+ bytes"
    with pytest.raises(ModelError, match=said):
        Model.load(configured(copied, hidden_size=10**6), device="cpu")


def test_weights_are_checked_in_one_thread():
    class Counted(dict):
        threads = 0

        def items(self):
            self.threads = torch.get_num_threads()
            return super().items()

    tensors, before = Counted(one=torch.ones(2, 2)), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check_finite("a model", tensors)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert tensors.threads == 1
