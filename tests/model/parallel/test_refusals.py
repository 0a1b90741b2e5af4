"""What cannot be split among ranks is refused in plain words, before any rank starts."""

from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import distributed

import starter
from command import Shell
from foreword import LLM, SamplingParams, bundled
from foreword.errors import InvalidRequest, ModelError
from foreword.model.parallel.load import check_devices
from foreword.options import ModelOptions
from zoo import build


@pytest.fixture(autouse=True)
def nothing_started():
    yield
    assert not distributed.is_initialized()


def refused(source: object, ranks: int = 2) -> str:
    with pytest.raises((ModelError, InvalidRequest)) as error:
        LLM(source, method="none", tokenizer=False, tensor_parallel=ranks)
    return str(error.value)


def saved(model: hf.PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def test_heads():
    assert refused(starter.target()).endswith(
        "2 does not divide its 6 attention heads and 3 heads of keys and values. Use 3"
    )
    assert refused(bundled.target(), 3).endswith("Use 2 or 4")


def test_model_without_a_plan(tmp_path: Path):
    text = refused(saved(build("gpt2"), tmp_path))
    assert "transformers has no plan to split models of type 'gpt2'" in text


def test_encoder_decoder(tmp_path: Path):
    config = hf.T5Config(
        vocab_size=64,
        d_model=32,
        d_ff=32,
        d_kv=8,
        num_layers=1,
        num_heads=4,
        decoder_start_token_id=0,
    )
    model = hf.T5ForConditionalGeneration(config)
    assert "it is an encoder-decoder" in refused(saved(model, tmp_path))


def test_quantized(tmp_path: Path):
    config = build("llama").config
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    config.save_pretrained(tmp_path)
    assert "it is quantized" in refused(tmp_path)


def test_model_in_memory():
    assert "cannot split a model in memory" in refused(build("llama"))


@pytest.mark.parametrize(
    "options", [{"backend": "native"}, {"weights": "int8"}, {"portable": True}]
)
def test_other_backends(options: dict[str, object]):
    (name,) = options
    with pytest.raises(InvalidRequest, match=f"with {name}=.*Leave '{name}' out"):
        ModelOptions(tensor_parallel=2, **options)


@pytest.mark.parametrize("ranks", [0, -1, 1.5])
def test_number_of_ranks(ranks: object):
    with pytest.raises(InvalidRequest, match="tensor_parallel"):
        ModelOptions(tensor_parallel=ranks)


def test_devices():
    check_devices("auto", "cpu", 2, 0)
    check_devices("cuda", "cuda", 2, 2)
    with pytest.raises(InvalidRequest, match="each takes a GPU, and there are 2"):
        check_devices("cuda", "cuda", 4, 2)
    for asked, kind in (("cuda:1", "cuda"), ("cpu", "cpu")):
        with pytest.raises(InvalidRequest, match=f"on device '{asked}'"):
            check_devices(asked, kind, 2, 2)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["--tensor-parallel", "--tensor-parallel-size"])
def test_number_of_ranks_is_checked(name: str, tmp_path: Path):
    ended = Shell(tmp_path)("generate", "One", name, "3")
    assert ended.returncode == 1
    assert "cannot split" in ended.stderr
    assert ended.stderr.rstrip().endswith("Use 2 or 4")


@pytest.mark.slow
def test_one_text_on_two_ranks(tmp_path: Path):
    shell = Shell(tmp_path)
    options = ("--seed", "1", "--max-tokens", "12", "--dtype", "float32", "--quiet")
    split = shell("generate", "Once upon", *options, "--tensor-parallel", "2")
    whole = shell("generate", "Once upon", *options, "--backend", "pool")
    assert split.returncode == 0
    assert split.stderr == ""
    assert split.stdout == whole.stdout != ""


PROMPTS = [torch.randint(3, 320, (12,)).tolist() * 2 for _ in range(3)]


def same_text(folder: Path, ranks: int) -> None:
    with LLM(
        folder,
        method="ngram",
        tokenizer=False,
        dtype="float32",
        budget="heuristic",
        tensor_parallel=ranks,
    ) as llm:
        drafted, plain = (
            llm.generate(
                PROMPTS,
                SamplingParams(method=method, max_tokens=60, temperature=0.1, seed=3),
            )
            for method in ("ngram", "none")
        )
        params = SamplingParams(max_tokens=60, temperature=0.1, seed=3)
        alone = llm.generate([PROMPTS[1]], params)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert alone[0].tokens == plain[1].tokens
    assert sum(one.stats.accepted for one in drafted) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mixtral", "qwen3", "gemma2"])
def test_two_ranks(kind: str, tmp_path: Path):
    build(kind).save_pretrained(tmp_path)
    same_text(tmp_path, 2)


@pytest.mark.slow
def test_four_ranks(tmp_path: Path):
    config = build("llama").config
    config.num_key_value_heads = 4
    type(build("llama"))(config).save_pretrained(tmp_path)
    same_text(tmp_path, 4)
