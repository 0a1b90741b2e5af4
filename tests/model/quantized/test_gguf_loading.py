"""A GGUF file is a model like any other, from a path or the hub, with errors."""

import gc
import shutil
import sys
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import gguf_files
import starter
from foreword import LLM, SamplingParams
from foreword.errors import ModelError
from foreword.model import Model, load_tokenizer
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights
from foreword.model.quantized import gguf_file
from generating import greedy
from tiny_models import differing

QUANTIZED = Path(__file__).parent / "mixed.gguf"
"""A Llama of random weights, by llama-quantize; see the README beside it."""
PROMPT = "The little dog and the cat"
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def checkpoint(plain) -> Path:
    """The folder that this file was made from."""
    return plain.with_name("checkpoint")


@pytest.fixture(scope="module", params=["Q8_0", "Q4_0"])
def file(plain, request) -> Path:
    return gguf_files.quantized(
        plain, plain.with_name(f"{request.param}.gguf"), request.param
    )


def test_numbers_are_those_of_the_checkpoint(plain, checkpoint):
    read = load_weights(plain, read_config(plain), torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
    expected = model.state_dict()
    assert differing(read.state_dict(), expected) == []
    assert not any(hasattr(layer, "coded") for layer in read.modules())
    assert read.config.name_or_path == str(plain)


def test_codes_are_the_weights(file):
    read = load_weights(file, read_config(file), torch.bfloat16)
    coded = [layer for layer in read.modules() if hasattr(layer, "coded")]
    # the LM head and the embeddings, which are equal, and seven of each layer
    assert len(coded) == 16
    for layer in coded:
        assert torch.equal(layer.coded.read().dense().to(torch.bfloat16), layer.weight)


def test_text_is_that_of_transformers_from_the_same_file(file):
    source = dict(gguf_file=file.name, trust_remote_code=False)
    load = AutoModelForCausalLM.from_pretrained
    theirs = load(file.parent, dtype=torch.float32, **source)
    tokens = AutoTokenizer.from_pretrained(file.parent, **source)(PROMPT).input_ids
    options = greedy(24) | dict(pad_token_id=0)
    written = theirs.generate(torch.tensor([tokens]), **options)[0]
    llm = LLM(file, dtype="float32", method="none")
    assert llm.generate(PROMPT, GREEDY)[0].tokens == written[len(tokens) :].tolist()


def test_each_file_is_parsed_once_and_unmapped(file, plain, monkeypatch):
    parsed, parse = [], gguf_file.Header
    monkeypatch.setattr(
        gguf_file, "Header", lambda path: (parsed.append(path), parse(path))[1]
    )
    copies = [
        shutil.copy(one, file.with_name(f"copy-of-{one.name}")) for one in (file, plain)
    ]
    llm = LLM(copies[0], draft=copies[1], nodes=3)
    assert llm.generate(PROMPT, GREEDY)[0].stats.accepted > 0
    assert sorted(parsed) == sorted(map(Path, copies))
    maps = Path("/proc/self/maps")
    assert copies[1].name not in maps.read_text()  # its embeddings have no codes
    del llm
    gc.collect()
    assert "copy-of-" not in maps.read_text()


def test_draft_from_a_file_changes_no_token(file, checkpoint):
    plain = LLM(checkpoint, method="none").generate(PROMPT, GREEDY)[0]
    drafted = LLM(checkpoint, draft=file, nodes=3).generate(PROMPT, GREEDY)[0]
    assert drafted.tokens == plain.tokens
    assert drafted.stats.accepted > 0


def test_native_backend_runs_the_file(file):
    target = Model.load(str(file), device="cpu")
    assert target.capability.backend == "native"
    assert target.dtype == torch.bfloat16
    assert target.eos == frozenset({0})


def test_tokens_are_those_of_the_original(plain, checkpoint):
    original, read = load_tokenizer(checkpoint), load_tokenizer(plain)
    text = "The year 2024 was  über\n\ngood, 12½ isn't it?<|endoftext|> <|end|>"
    assert read.get_vocab() == original.get_vocab()
    assert read(text).input_ids == original(text).input_ids


def test_special_tokens_beyond_ascii_are_found_in_text(plain, tmp_path):
    tokens = gguf.GGUFReader(plain).fields["tokenizer.ggml.tokens"].contents()
    changed = [tokens[0], "<｜User｜>", *tokens[2:]]
    read = load_tokenizer(
        gguf_files.quantized(
            plain, tmp_path / "model.gguf", "Q8_0", **{"tokenizer.ggml.tokens": changed}
        )
    )
    assert read.convert_tokens_to_ids("<｜User｜>") == 1
    assert read("<｜User｜>The").input_ids == [1, tokens.index("The")]
    assert max(read.get_vocab().values()) == len(tokens) - 1


@pytest.mark.parametrize(
    ("split", "begins"), [("llama-bpe", True), ("tekken", True), ("qwen2", False)]
)
def test_some_splits_keep_whole_words(plain, tmp_path, split, begins):
    fields = dict(pre=split, add_bos_token=None, bos_token_id=2)
    more = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
    file = gguf_files.quantized(plain, tmp_path / "model.gguf", "Q8_0", **more)
    read = load_tokenizer(file)
    assert read.backend_tokenizer.model.ignore_merges == begins
    assert (read("The").input_ids[0] == 2) == begins


def test_a_split_that_is_not_known_is_a_warning(plain, tmp_path):
    more = {"tokenizer.ggml.pre": "viking"}
    file = gguf_files.quantized(plain, tmp_path / "model.gguf", "Q8_0", **more)
    with pytest.warns(UserWarning, match="'viking', which is read as GPT-2's"):
        load_tokenizer(file)


def test_types_of_llama_quantize_are_read():
    read = load_weights(QUANTIZED, read_config(QUANTIZED), torch.float32)
    kinds = [one.tensor_type.name for one in gguf.GGUFReader(QUANTIZED).tensors]
    assert set(kinds) == {"F32", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"}
    coded = [layer for layer in read.modules() if hasattr(layer, "coded")]
    assert len(coded) == sum(kind != "F32" for kind in kinds)
    for layer in coded:
        assert torch.equal(layer.coded.read().dense(), layer.weight)


def test_chats_follow_the_template_of_the_file(plain, tmp_path):
    turn = "<|user|>{{ message['content'] }}<|end|>"
    template = "{% for message in messages %}" + turn + "{% endfor %}<|assistant|>"
    more = {"tokenizer.chat_template": template}
    file = gguf_files.quantized(plain, tmp_path / "chat.gguf", "Q8_0", **more)
    llm = LLM(file, method="none")
    tokens = llm.render([{"role": "user", "content": "The"}])
    words = llm.tokenizer.convert_ids_to_tokens(tokens)
    assert words == "<|user|> The <|end|> <|assistant|>".split()


def test_tokens_that_end_a_turn_end_the_text(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(starter.draft(), dtype=torch.float32)
    ends = dict(tokenizer__ggml__eos_token_id=3, tokenizer__ggml__eot_token_id=5)
    more = ends | dict(rope__dimension_count=64)
    file = gguf_files.write(model, tmp_path / "model.gguf", "llama", **more)
    config = read_config(file)
    assert (config.eos_token_id, config.bos_token_id) == ([3, 5], None)


# ---- the hub


@pytest.fixture
def cached(plain, snapshot) -> Path:
    """One file of some/model."""
    return Path(shutil.copy(plain, snapshot / "model.gguf"))


def test_a_file_of_the_hub_is_found_in_the_cache(cached):
    llm = LLM("some/model:model.gguf", method="none", device="cpu")
    assert llm.target.hf.config.name_or_path == "some/model:model.gguf"
    assert len(llm.generate(PROMPT, GREEDY)[0].tokens) == 24


def test_a_file_that_is_not_in_the_cache_is_named(cached):
    for load in (Model.load, load_tokenizer, LLM):
        with pytest.raises(ModelError, match=r"modle\.gguf'|some/model.*does not"):
            load("some/model:modle.gguf")


# ---- errors


@pytest.mark.parametrize("name", ["modle.gguf", "./modle.gguf"])
def test_a_typo_in_a_path_is_named(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for load in (Model.load, load_tokenizer, LLM):
        with pytest.raises(ModelError, match=r"no such file exists\. Give"):
            load(name)


@pytest.mark.parametrize("length", [0, 3, 2_000, 400_000])
def test_a_file_that_ends_too_soon_is_no_complete_one(plain, tmp_path, length):
    short = tmp_path / "short.gguf"
    short.write_bytes(plain.read_bytes()[:length])
    for load in (Model.load, load_tokenizer):
        with pytest.raises(ModelError, match=r"not a complete GGUF file: .+"):
            load(short)


def test_another_file_is_no_gguf_file(tmp_path):
    (tmp_path / "text.gguf").write_text("once upon a time " * 100)
    with pytest.raises(ModelError, match=r"it does not begin with GGUF\. Download it"):
        Model.load(tmp_path / "text.gguf")


def test_a_missing_package_is_named(plain, tmp_path, monkeypatch):
    copy = shutil.copy(plain, tmp_path / "copy.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    for load in (Model.load, load_tokenizer):
        with pytest.raises(ModelError, match=r"copy\.gguf: .*gguf is not installed"):
            load(copy)


def test_a_type_that_is_not_supported_is_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    kind = gguf.GGMLQuantizationType.IQ2_XXS
    codes = torch.zeros(8, 66, dtype=torch.uint8).numpy()
    writer.add_tensor("token_embd.weight", codes, raw_dtype=kind)
    gguf_files.finish(writer)
    with pytest.raises(ModelError, match=r"token_embd\.weight: its type IQ2_XXS"):
        Model.load(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("architecture", "fields", "reason"),
    [
        ("bert", {}, (r"'bert' is not supported\. Use a file of one of llama")),
        ("llama", {"split.count": 3}, r"one of 3 parts, .* NAME-00001-of-00003\.gguf"),
        ("llama", {}, r"lacks token_embd\.weight\. Use a file that holds a"),
    ],
)
def test_files_that_hold_something_else_are_refused(
    tmp_path, architecture, fields, reason
):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", architecture)
    for name, value in fields.items():
        writer.add_uint16(name, value)
    writer.add_tensor("output_norm.weight", torch.ones(8).numpy())
    gguf_files.finish(writer)
    with pytest.raises(ModelError, match=reason):
        Model.load(tmp_path / "model.gguf")


def test_a_file_without_a_tokenizer_says_so():
    with pytest.raises(ModelError, match=r"tokenizer from .*mixed\.gguf: .*=False"):
        load_tokenizer(QUANTIZED)
    llm = LLM(QUANTIZED, tokenizer=False, method="none")
    assert llm.generate([[1, 2, 3]], GREEDY)[0].tokens
