"""Weights that do not fit in memory are read in every forward, bit for bit."""

import os
import resource
import shutil
from pathlib import Path

import pytest
import torch

import tiny_models
import tiny_seq2seq
from foreword import LLM, SamplingParams, bundled
from foreword.errors import DiskError, InvalidRequest, ModelError
from foreword.model import Model, Read
from foreword.model.executors.native import offload
from foreword.model.kv import limit as memory_limit
from foreword.native import cgroups
from grids import NEEDS_C, slow_case
from running import of_length, prompts

pytestmark = NEEDS_C
KINDS = "llama-gqa qwen3 gemma3 lfm2 qwen3.5 qwen2-moe gpt-oss gpt-neox".split()
LITTLE, MUCH = 2_000_000, 2_000_000_000
"""Bytes. Too few for the layers of any model here, and enough for all."""
MAPS = Path("/proc/self/maps")
SEEDED = SamplingParams(max_tokens=32, seed=3)
EVERY = 8
"""Layers of the bundled target."""


@pytest.fixture
def limited(monkeypatch, tmp_path):
    """Puts this process into a container with a memory limit, as far as it can tell."""

    def limit(size: int, taken: int = 0) -> None:
        (tmp_path / "memory.max").write_text(f"{size}\n")
        (tmp_path / "memory.stat").write_text(f"anon {taken}\nfile 123\n")

    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    return limit


def scores(model: Model) -> torch.Tensor:
    """The scores of rows that are read at once, and of one that is read later."""
    tokens = [token % model.vocab for prompt in prompts() for token in prompt][:40]
    model.open(1, 100)
    first = model.read([Read(1, 0, tokens, keep=40)])
    later = model.read([Read(1, 40, [7])])
    model.close(1)
    return torch.cat([first, later])


@pytest.mark.parametrize(
    ("form", "size", "offloaded"),
    [
        (None, LITTLE, EVERY),
        ("int8", LITTLE, EVERY),
        ("int4", LITTLE, EVERY),
        ("int8", MUCH, None),
        slow_case(None, MUCH, None),
        slow_case("int4", MUCH, None),
    ],
)
def test_scores_are_those_of_weights_in_memory(
    form, size, offloaded, limited, tmp_path
):
    whole = scores(Model.load(bundled.target(), weights=form, backend="native"))
    limited(size)
    for _ in ("written", "opened"):
        model = Model.load(
            bundled.target(), weights=form, offload_folder=tmp_path / "weights"
        )
        assert model.offloaded == offloaded
        assert model.weights == form
        assert str(model.device) == "cpu"
        for _ in range(2):
            assert torch.equal(scores(model), whole)
    assert len(list((tmp_path / "weights").iterdir())) == 1


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_is_opened_as_it_was(kind, limited, tmp_path):
    hf = tiny_models.build(kind).to(torch.bfloat16)
    hf.save_pretrained(tmp_path / "model")
    whole = scores(Model.load(tmp_path / "model", backend="native"))
    limited(1000)
    folders = tmp_path / "model", tmp_path / "weights"
    models = [Model.load(folders[0], offload_folder=folders[1]) for _ in range(2)]
    assert all(
        model.offloaded
        == len(model.backend.model.layer[: model.backend.model.layers]) // 2 * 2
        for model in models
    )
    assert all(torch.equal(scores(model), whole) for model in models)
    assert models[0].parameters == models[1].parameters
    assert models[0].eos == models[1].eos


def test_folder_is_opened_without_the_checkpoint(tmp_path):
    source = tmp_path / "model"
    shutil.copytree(bundled.target(), source)
    whole = scores(Model.load(source, offload_folder=tmp_path / "weights"))
    file = source / "model.safetensors"
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(before.st_size // 2)
        opened.write(b"<" * (before.st_size // 4))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert torch.equal(
        scores(Model.load(source, offload_folder=tmp_path / "weights")), whole
    )
    os.utime(file)
    changed = scores(Model.load(source, offload_folder=tmp_path / "weights"))
    assert not torch.equal(changed, whole), "another checkpoint has a folder of its own"
    assert len(list((tmp_path / "weights").iterdir())) == 2


@pytest.mark.skipif(not MAPS.exists(), reason="no list of mapped files here")
def test_what_fits_is_mapped_and_not_copied(tmp_path):
    """So processes that open a folder share its pages."""
    with LLM(offload_folder=tmp_path) as llm:
        assert llm.target.offloaded is None
        (folder,) = tmp_path.iterdir()
        assert str(folder / offload.FILE) in MAPS.read_text()
        in_file = llm.generate("Once upon a time", SEEDED)[0].text
    with LLM() as llm:
        assert llm.generate("Once upon a time", SEEDED)[0].text == in_file


def test_drafts_leave_the_text_unchanged(limited, tmp_path):
    def answers(llm: LLM, method: str) -> list:
        """The first answer is greedy, the second is sampled."""
        params = [
            of_length(30, temperature, seed=5, method=method, nodes=6)
            for temperature in (0.0, 0.8)
        ]
        return llm.generate([list(prompt) for prompt in prompts()[:2]], params)

    kept = [one.tokens for one in answers(LLM(weights="int4"), "none")]
    limited(LITTLE)
    llm = LLM(weights="int4", offload_folder=tmp_path / "weights", cache_tokens=4096)
    assert "offloaded=8" in repr(llm)
    assert [one.tokens for one in answers(llm, "none")] == kept
    # the last one reads some layers only
    for method in ("lm", "suffix", "eagle", "layers"):
        drafted = answers(llm, method)
        assert [one.tokens for one in drafted] == kept, method
        assert sum(one.stats.accepted for one in drafted) > 0, method
        assert all(one.undrafted is None for one in drafted), method


def test_unreadable_file_is_named(limited, tmp_path):
    limited(LITTLE)
    model = Model.load(bundled.target(), offload_folder=tmp_path / "weights")
    scores(model)
    (file,) = (tmp_path / "weights").rglob("matrices.bin")
    os.truncate(file, 4096)
    with pytest.raises(ModelError, match=r"read weights from .*matrices\.bin: .*Load"):
        scores(model)


def test_damaged_folder_is_refused(tmp_path):
    Model.load(bundled.target(), offload_folder=tmp_path / "whole")
    for damage in ("matrices.bin", "matrices.json", "about.json", "rest.safetensors"):
        copy = tmp_path / damage.replace(".", "-")
        shutil.copytree(tmp_path / "whole", copy)
        (file,) = copy.rglob(damage)
        os.truncate(file, file.stat().st_size // 2)
        with pytest.raises(ModelError, match=r"cannot (open|read) .*Remove"):
            Model.load(bundled.target(), offload_folder=copy)


def test_full_disk_leaves_nothing(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with pytest.raises(DiskError, match=r"cannot write .*: the disk is full"):
            Model.load(bundled.target(), offload_folder=tmp_path / "weights")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "weights").iterdir()) == []


def test_as_many_layers_stay_in_memory_as_fit():
    assert offload.kept([10] * 6, 60) == 6
    counts = [offload.kept([10] * 6, free) for free in (59, 40, 39, 20, 0)]
    assert counts == [2, 2, 0, 0, 0]
    assert [offload.kept([10] * 5, free) for free in (49, 30, 29, 0)] == [1, 1, 1, 1]
    assert offload.kept([10, 10, 30, 10], 59) == 0


def test_memory_of_a_container_is_without_files(limited, monkeypatch, tmp_path):
    device = torch.device("cpu")
    limited(1000, taken=300)
    assert memory_limit.free_memory(device) == 700
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit.free_memory(device) > 1000
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("500\n")
    (tmp_path / "memory" / "memory.stat").write_text("cache 400\nrss 100\n")
    assert memory_limit.free_memory(device) == 400
    inner = tmp_path / "memory" / "mine"
    inner.mkdir()
    (inner / "memory.limit_in_bytes").write_text("200\n")
    (inner / "memory.stat").write_text("cache 400\nrss 150\n")
    (tmp_path / "own").write_text("4:memory:/mine\n1:cpu:/\n")
    monkeypatch.setattr(cgroups, "OWN", tmp_path / "own")
    assert memory_limit.free_memory(device) == 50


@pytest.mark.parametrize(
    "how",
    [dict(backend="pool"), dict(dtype="float32"), dict(device="cuda:99")],
    ids=str,
)
def test_what_cannot_be_offloaded_is_refused_before_work_starts(how, tmp_path):
    with pytest.raises((InvalidRequest, ModelError), match=r"cannot use"):
        LLM(offload_folder=tmp_path / "weights", **how)
    assert not (tmp_path / "weights").exists()


def test_impossible_folder_is_refused_before_work_starts():
    with pytest.raises(InvalidRequest, match=r"cannot create /proc/none/.*: .*Choose"):
        Model.load(bundled.target(), offload_folder="/proc/none")


def test_a_model_in_memory_is_not_offloaded(tmp_path):
    model = tiny_models.build("llama-gqa")
    with pytest.raises(InvalidRequest, match=r"offload a model in memory\. Save it"):
        LLM(model, tokenizer=False, offload_folder=tmp_path)


def test_an_encoder_decoder_is_not_offloaded(tmp_path):
    source = tiny_seq2seq.saved("t5", tmp_path / "t5")
    with pytest.raises(ModelError, match=r"cannot offload .*encoder-decoder"):
        Model.load(source, offload_folder=tmp_path / "weights")
