"""A model in several GGUF files is read from all; wrong parts are refused by name."""

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig

import gguf_files
from foreword import LLM, SamplingParams
from foreword.errors import ModelError
from foreword.files import model_name, part_names
from foreword.model import Model, load_tokenizer
from foreword.model.loading import verdicts
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights
from foreword.model.loading.sizes import stamps
from foreword_server.replicas.catalog import read_catalog
from gguf_files.families import random
from tiny_sizes import sizes

PROMPT = "The little dog and the cat"
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PARTS = 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The small draft model in one file."""
    folder = tmp_path_factory.mktemp("parts")
    plain = gguf_files.small(folder)
    return gguf_files.quantized(plain, folder / "whole.gguf", "Q8_0")


@pytest.fixture(scope="module")
def split(whole) -> list[Path]:
    """The same in three files; the first has the metadata alone, as some have it."""
    return gguf_files.split(whole, whole.with_name("model.gguf"), PARTS)


@pytest.fixture
def parts(split, tmp_path) -> list[Path]:
    """Copies of the parts, to be damaged."""
    return [Path(shutil.copy(part, tmp_path)) for part in split]


def part(path: Path, number: int, count: int, total: int, *names: str) -> Path:
    """Write a part with small tensors of these names."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("split.no", number)
    writer.add_uint16("split.count", count)
    writer.add_int32("split.tensors.count", total)
    for name in names:
        writer.add_tensor(name, np.ones((8, 4), dtype=np.float32))
    gguf_files.finish(writer)
    return path


@pytest.mark.parametrize("named", range(PARTS))
def test_weights_are_those_of_the_whole_file(whole, split, named):
    path = split[named]
    expected = load_weights(whole, read_config(whole), torch.bfloat16).state_dict()
    found = load_weights(path, read_config(path), torch.bfloat16).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert load_tokenizer(path).get_vocab() == load_tokenizer(whole).get_vocab()


def test_embeddings_are_the_lm_head_only_where_no_part_holds_one(tmp_path):
    """Transformers asks the tensors of the file that it is given."""
    options = sizes(64, 96, 2, layers=1, vocab_size=64, tie_word_embeddings=False)
    model = random(AutoConfig.for_model("llama", **options))
    more = {"rope__dimension_count": 32}
    path = gguf_files.write(model, tmp_path / "whole.gguf", "llama", **more)
    found = read_config(gguf_files.split(path, tmp_path / "model.gguf", PARTS)[0])
    assert found.tie_word_embeddings is False


def test_draft_and_target_in_parts_write_the_text_of_whole_files(whole, split):
    plain = LLM(whole, method="none").generate(PROMPT, GREEDY)[0]
    drafted = LLM(split[2], draft=split[1], nodes=3).generate(PROMPT, GREEDY)[0]
    assert drafted.tokens == plain.tokens
    assert drafted.stats.accepted > 0


def test_parts_are_unmapped_after_loading(parts):
    LLM(parts[0], method="none")
    assert str(parts[0].parent) not in Path("/proc/self/maps").read_text()


def test_what_a_probe_found_is_for_all_parts(parts, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(verdicts, "LARGE", 1)
    config = read_config(parts[0])
    assert [name for name, *_ in stamps(parts[1])] == [one.name for one in parts]
    before = verdicts.cached(parts[0], config, torch.bfloat16).file
    assert before == verdicts.cached(parts[2], config, torch.bfloat16).file
    parts[2].touch()
    assert before != verdicts.cached(parts[0], config, torch.bfloat16).file


def test_a_folder_of_models_has_one_for_all_parts(parts):
    (found,) = read_catalog(parts[0].parent, {})
    assert (found.name, found.model) == ("model", str(parts[0]))
    assert found.bytes == sum(one.stat().st_size for one in parts)


# ---- the hub


@pytest.fixture
def cached(split, snapshot) -> Path:
    """Links to files named by their content, in a folder of the repository."""
    folder, blobs = snapshot / "Q8_0", snapshot.parents[1] / "blobs"
    folder.mkdir()
    blobs.mkdir()
    for number, file in enumerate(split):
        blob = Path(shutil.copy(file, blobs / f"{number}f00d"))
        (folder / file.name).symlink_to(blob)
    return folder


def test_parts_of_the_hub_are_found_in_the_cache(cached):
    name = "some/model:Q8_0/model-00002-of-00003.gguf"
    llm = LLM(name, method="none", device="cpu")
    assert len(llm.generate(PROMPT, GREEDY)[0].tokens) == 24


def test_a_part_that_is_not_in_the_cache_is_named(cached):
    (cached / "model-00003-of-00003.gguf").unlink()
    for load in (Model.load, load_tokenizer):
        with pytest.raises(ModelError, match=r"some/model .* model-00003-of-00003\.gg"):
            load("some/model:Q8_0/model-00001-of-00003.gguf")


# ---- errors


@pytest.mark.parametrize("lacking", range(PARTS))
def test_a_missing_part_is_named(parts, lacking):
    named = parts[(lacking + 1) % PARTS]
    missing = parts[lacking].name
    parts[lacking].unlink()
    for load in (Model.load, load_tokenizer, LLM):
        with pytest.raises(ModelError, match=f"lacks {missing}\\. Download"):
            load(named)


def test_a_damaged_part_is_named(parts):
    parts[1].write_bytes(parts[1].read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"00002-of-00003\.gguf is not a complete"):
        Model.load(parts[0])


def test_parts_that_were_exchanged_are_named(parts):
    content = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    parts[2].write_bytes(content)
    with pytest.raises(ModelError, match=r"00002-of-00003\.gguf holds part 3 of 3"):
        Model.load(parts[0])


EMBEDDINGS, NORM = "token_embd.weight", "output_norm.weight"


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ((1, 3, 2, NORM), r"a-00002-of-00002\.gguf holds part 2 of 3, not part 2 of 2"),
        ((1, 2, 9, NORM), ("part of another model .*count is 9, not 2")),
        ((1, 2, 2, EMBEDDINGS), (r"both hold the tensor token_embd\.weight")),
        ((1, 2, 2, NORM, "output.weight"), ("there are 2 tensors, and .* hold 3")),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(tmp_path, second, reason):
    first = part(tmp_path / "a-00001-of-00002.gguf", 0, 2, 2, EMBEDDINGS)
    part(tmp_path / "a-00002-of-00002.gguf", *second)
    with pytest.raises(ModelError, match=rf"{reason}.*Download all parts of the same"):
        Model.load(first)


def test_a_part_without_its_fields_is_refused(tmp_path, whole):
    for number in (1, 2):
        shutil.copy(whole, tmp_path / f"a-0000{number}-of-00002.gguf")
    with pytest.raises(ModelError, match=r"a-00001-of-00002\.gguf lacks the fields"):
        Model.load(tmp_path / "a-00001-of-00002.gguf")


def test_names_of_parts():
    name = "Q4_K_M/a-b-00002-of-00003.GGUF"
    found = [f"Q4_K_M/a-b-0000{number}-of-00003.GGUF" for number in (1, 2, 3)]
    assert part_names(name) == found
    assert model_name("a-b-00002-of-00003.gguf") == "a-b"
    for other in ("a.gguf", "a-00004-of-00003.gguf", "a-00000-of-00003.gguf"):
        assert part_names(other) == [other]
    assert model_name("a.Q4_0.gguf") == "a.Q4_0"
