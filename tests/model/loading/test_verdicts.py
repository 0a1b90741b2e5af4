"""A large checkpoint is probed once: the next load takes what was found."""

import json
import os
from pathlib import Path

import pytest
import torch

import gguf_files
import starter
import tiny_models
from foreword import LLM, SamplingParams
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.model import model as model_module
from foreword.model.executors.native import matrices, offload
from foreword.model.loading import first_layers, from_checkpoint, verdicts
from foreword.model.probe import probe
from foreword.notices import RECEIVER
from gguf_files.families import FAMILIES, random
from grids import NEEDS_C
from running import of_length, prompts

pytestmark = NEEDS_C
RECORDED = Path(__file__).parents[1] / "quantized" / "recorded"
CHECKPOINTS = sorted(
    path.name for path in RECORDED.iterdir() if "qwen35" not in path.name
)
"""But for those whose recurrent layers are too small for the backend."""
KINDS = ["llama", "llama, tied", *"qwen2 qwen3 gemma2 gemma3 phi3 qwen3moe".split()]
TOKENS = list(range(3, 15))
PARAMS = SamplingParams(temperature=0, max_tokens=4)
LARGE = verdicts.LARGE


@pytest.fixture(autouse=True)
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of verdicts, which are kept about checkpoints of any size here."""
    monkeypatch.setattr(matrices, "BLOCK", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(verdicts, "LARGE", 0)
    return tmp_path / "cache" / "foreword" / "probes"


def mark(probes: Path) -> None:
    """Change the error in the only verdict, so that its use is seen."""
    [file] = probes.iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"error": 0.125}))


def marked(model: Model) -> bool:
    return model.capability.error == 0.125


def scores(model: Model) -> torch.Tensor:
    model.open(1, len(TOKENS) + 1)
    try:
        return model.read([Read(1, 0, TOKENS, keep=len(TOKENS))])
    finally:
        model.close(1)


def check_twice(path: Path, probes: Path, **how: object) -> None:
    """Load a checkpoint twice; the second takes the first's verdict, alike."""
    first = Model.load(path, device="cpu", **how)
    assert first.capability.backend == "native"
    mark(probes)
    second = Model.load(path, device="cpu", **how)
    assert marked(second)
    assert not marked(first)
    assert torch.equal(scores(second), scores(first))
    assert second.weights == first.weights
    assert second.parameters == first.parameters
    assert second.device == first.device
    assert second.backend.weight_bytes == first.backend.weight_bytes
    assert not any(weight.is_meta for weight in second.hf.parameters())


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_recorded_checkpoints(name, probes):
    path = RECORDED / name
    path = path / "model.gguf" if name.startswith("gguf-") else path
    check_twice(path, probes)


def test_a_gguf_file_of_many_types(probes):
    check_twice(RECORDED.parent / "mixed.gguf", probes)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", KINDS)
def test_families_of_gguf_files(name, probes, tmp_path):
    architecture, config, fields = FAMILIES[name]
    check_twice(
        gguf_files.write(
            random(config), tmp_path / "model.gguf", architecture, "Q4_0", **fields
        ),
        probes,
    )


@pytest.mark.parametrize("name", ["llama, tied", "gemma2"])
def test_first_layers_are_probed_for_all(name, probes, tmp_path, monkeypatch):
    architecture, config, fields = FAMILIES[name]
    path = tmp_path / "model.gguf"
    gguf_files.write(random(config), path, architecture, "Q4_0", **fields)
    whole = Model.load(path, device="cpu", dtype="bfloat16")
    monkeypatch.setattr(verdicts, "LARGE", 2**40)
    monkeypatch.setattr(first_layers, "LEAST", 1)
    model = Model.load(path, device="cpu", dtype="bfloat16")
    found = first_layers.capability(path, config, torch.bfloat16, None)
    # layers of the second kind do not come first
    assert (found is None) == (name == "gemma2")
    assert (model.capability == whole.capability) == (found is None)
    assert torch.equal(scores(model), scores(whole))
    assert model.backend.weight_bytes == whole.backend.weight_bytes


@pytest.mark.parametrize(
    "how", [{}, {"weights": "int8"}, {"weights": "int4", "kv": "int8"}], ids=str
)
def test_checkpoints_in_16_bits(how, probes):
    check_twice(starter.draft(), probes, **how)


@pytest.mark.parametrize(
    "path",
    [starter.draft(), RECORDED.parent / "mixed.gguf"],
    ids=["16 bits", "few bits"],
)
def test_a_folder_for_weights_is_written_without_a_probe(path, probes, tmp_path):
    first = Model.load(path, device="cpu")
    mark(probes)
    second = Model.load(path, device="cpu", offload_folder=tmp_path / "weights")
    third = Model.load(path, device="cpu", offload_folder=tmp_path / "weights")
    assert marked(second)
    assert torch.equal(scores(second), scores(first))
    assert torch.equal(scores(third), scores(first))


def test_the_text_is_the_same_and_drafted(probes, tmp_path):
    plain, path = gguf_files.small(tmp_path), tmp_path / "model.gguf"
    gguf_files.quantized(plain, path, "Q4_0")
    params = of_length(40, 0.7, seed=3, nodes=4)
    done = []
    for _ in range(2):
        with LLM(path, method="suffix", device="cpu") as llm:
            tokens = [token % gguf_files.TOKENS for token in prompts()[0]]
            done.append(llm.generate(tokens, params)[0])
    assert done[0].tokens == done[1].tokens
    assert done[1].stats.accepted > 0


def test_phases_of_a_large_checkpoint_are_named(probes, monkeypatch):
    lines = []
    monkeypatch.setattr(from_checkpoint, "LARGE", 0)
    receiver = RECEIVER.set(lines.append)
    for _ in range(2):
        Model.load(RECORDED.parent / "mixed.gguf", device="cpu")
    RECEIVER.reset(receiver)
    words = [line.split()[0] for line in lines if "compiling" not in line]
    assert words == ["checking", "reading", "packing", "reading", "packing"]


def test_other_files_are_probed_again(probes, tmp_path):
    path = tmp_path / "model"
    tiny_models.build("llama").save_pretrained(path)
    assert not marked(Model.load(path, device="cpu"))
    mark(probes)
    assert marked(Model.load(path, device="cpu"))
    assert not marked(Model.load(path, device="cpu", dtype="float32", backend="pool"))
    os.utime(path / "model.safetensors", ns=(1, 1))
    assert not marked(Model.load(path, device="cpu"))
    assert len(list(probes.iterdir())) == 2


def test_damaged_verdict_is_not_used(probes, tmp_path):
    path = tmp_path / "model"
    tiny_models.build("llama").save_pretrained(path)
    Model.load(path, device="cpu")
    [file] = probes.iterdir()
    for text in (
        "",
        "[]",
        "{}",
        '{"mode": "tree"}',
        '{"mode": 3, "backend": "native"}',
    ):
        file.write_text(text)
        assert Model.load(path, device="cpu").capability.backend == "native", text
        assert json.loads(file.read_text())["backend"] == "native", text


def test_bundled_models_are_probed_once(probes, monkeypatch):
    monkeypatch.setattr(verdicts, "LARGE", LARGE)
    with LLM(dtype="bfloat16") as llm:
        first = llm.generate([TOKENS], PARAMS)[0]
    monkeypatch.setattr(probe, "Trial", None)
    monkeypatch.setattr(probe, "check_causal", None)
    with LLM(dtype="bfloat16") as llm:
        again = llm.generate([TOKENS], PARAMS)[0]
    assert again.tokens == first.tokens
    assert len(list(probes.iterdir())) == 2


@pytest.mark.filterwarnings("ignore:slow path")
@pytest.mark.parametrize(("kind", "size"), [("llama", 72), ("falcon", 64)])
def test_models_that_native_refuses_are_probed_once(kind, size, tmp_path, monkeypatch):
    config = tiny_models.build(kind).config
    config.hidden_size = size
    tiny_models.random(config).save_pretrained(tmp_path / "model")
    first = Model.load(tmp_path / "model", device="cpu")
    assert first.capability.backend != "native"
    monkeypatch.setattr(probe, "Trial", None)
    again = Model.load(tmp_path / "model", device="cpu")
    assert (again.capability, again.dtype) == (first.capability, first.dtype)
    assert torch.equal(scores(again), scores(first))


def test_small_models_are_packed_in_one_thread(probes, monkeypatch):
    threads, build = [], model_module.build_backend

    def counted(*arguments, **options):
        threads.append(torch.get_num_threads())
        return build(*arguments, **options)

    monkeypatch.setattr(model_module, "build_backend", counted)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(2):
            Model.load(starter.draft(), device="cpu")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert threads == [1]


def test_small_checkpoints_are_probed_every_time(probes, monkeypatch):
    monkeypatch.setattr(verdicts, "LARGE", 2**40)
    Model.load(starter.draft(), device="cpu")
    assert not probes.exists()


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose memory holds no weights in 16 bits."""
    monkeypatch.setattr(offload, "SHARE", 0)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("recorded/awq", {}),
        ("mixed.gguf", {}),
        ("", {"weights": "int4"}),
        ("moe", {"weights": "int8"}),
    ],
)
def test_weights_lie_in_a_file_until_quantized(name, how, probes, request, tmp_path):
    path = RECORDED.parent / name if name else starter.draft()
    if name == "moe":  # its routers stay in 16 bits
        path = tmp_path / "moe"
        tiny_models.build("qwen3-moe").to(torch.bfloat16).save_pretrained(path)
    usual = scores(Model.load(path, device="cpu", **how))
    for file in probes.iterdir():
        file.unlink()
    request.getfixturevalue("tight")
    model = Model.load(path, device="cpu", **how)
    assert torch.equal(scores(model), usual)
    maps = Path("/proc/self/maps").read_text().splitlines()
    # few bits are in memory
    assert not any(str(probes.parent) in line and "(deleted)" in line for line in maps)
    probes.parent.rename(probes.parent.with_suffix(".away"))
    probes.parent.write_text("a file")
    with pytest.raises(ModelError, match="do not fit in the free memory, and no"):
        Model.load(path, device="cpu", **how)
