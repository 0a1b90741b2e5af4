"""Products with codes beside their definition, and checkpoints that are read so."""

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

import quantizing
import quantizing.floats
import tiny_models
import tiny_sizes
from foreword.draft.lm import LanguageModelDrafter
from foreword.model import Mode, Model
from foreword.model.executors.cuda import quantized
from foreword.model.executors.registry import Capability
from foreword.model.quantized.coded import Coded, Scales
from foreword.model.quantized.formats import floats
from foreword.native.forward import BYTES, GROUPS
from foreword.types import SamplingParams
from layers import DEVICE, TOLERANCE
from model.cuda.test_fused import close, logits
from running import Case, count_accepted, engine, finish, outputs

pytest.importorskip("triton")
FILES = Path(__file__).parents[1] / "quantized"
LEVELS = {4: torch.arange(16) - 8, 8: torch.arange(256) - 128}
LEVELS["table"] = (torch.arange(16) - 7) ** 3 // 8
LEVELS = {name: levels.to(torch.int8) for name, levels in LEVELS.items()}
LEVELS["E4M3"] = floats.LEVELS
PARAMS = SamplingParams(max_tokens=4, temperature=0.8, seed=3, ignore_eos=True)
CASES = [Case(tuple(range(7, 12)), PARAMS), Case((40, 3), PARAMS)]


def matrix(levels: torch.Tensor, group: int, spans: int | None, offset: bool) -> Coded:
    """Random codes of 40 outputs; numbers of two levels where there are spans."""
    count = 192 // group
    factors = None if spans is None else torch.randint(-64, 64, (40, count))
    values = torch.rand(40, spans or count).half().float() / 64
    offsets = Scales(-values.flip(0), factors) if offset else None
    codes = torch.randint(0, len(levels), (40, 192), dtype=torch.uint8)
    codes[codes % 128 == 127] = 0  # NaN in E4M3
    return Coded(codes, levels, Scales(values, factors), offsets, group)


@pytest.mark.parametrize(
    ("levels", "group", "spans", "offset", "dtype"),
    [
        pytest.param(LEVELS[4], 64, None, False, torch.bfloat16, id="int4"),
        pytest.param(LEVELS[8], 192, None, False, torch.bfloat16, id="int8"),
        pytest.param(LEVELS[4], 32, 2, True, torch.float32, id="Q4_K"),
        pytest.param(LEVELS[8][:64], 16, 3, False, torch.float16, id="Q6_K"),
        pytest.param(LEVELS[4][:4], 16, 1, True, torch.float32, id="Q2_K"),
        pytest.param(LEVELS["table"], 32, 1, False, torch.float32, id="IQ4_XS"),
        pytest.param(LEVELS[4], 96, None, True, torch.bfloat16, id="AWQ"),
        pytest.param(LEVELS["E4M3"], 64, None, False, torch.float32, id="FP8"),
        pytest.param(LEVELS["E4M3"], 32, None, False, torch.float16, id="MXFP8"),
    ],
)
@pytest.mark.usefixtures("blind")
@torch.no_grad()
def test_product_is_that_of_its_definition(levels, group, spans, offset, dtype):
    """The bits of a row do not depend on other rows."""
    coded = matrix(levels, group, spans, offset)
    linear = nn.Linear(192, 40, bias=offset, dtype=dtype, device=DEVICE)
    layer = quantized.QuantizedLinear(linear, coded)
    assert layer.codes.nbytes == coded.codes.numel() // (1 + (len(levels) <= 16))
    x = torch.randn(1, 70, 192).to(DEVICE, dtype)
    wanted = x.float() @ coded.dense().T.to(DEVICE)
    wanted += linear.bias if offset else 0
    within = TOLERANCE[dtype] * wanted.abs().max().item()
    found = layer(x)
    torch.testing.assert_close(found.float(), wanted, atol=within, rtol=0)
    assert torch.equal(layer(x[:, :3]), found[:, :3])
    assert torch.equal(layer(x.roll(9, 1)).roll(-9, 1), found)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@torch.no_grad()
def test_bytes_in_e4m3_are_their_numbers(dtype):
    """Each input is 1 alone, so that outputs are its weights."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes[127::128] = 0  # NaN
    coded = Coded(codes[None], floats.LEVELS, Scales(torch.ones(1, 1)), None, 256)
    linear = nn.Linear(256, 1, bias=False, dtype=dtype, device=DEVICE)
    found = quantized.QuantizedLinear(linear, coded)(torch.eye(256).to(linear.weight))
    assert torch.equal(found.T.float().cpu(), coded.dense())
    assert len(found.unique()) == 253  # 0 and -0 are equal


@pytest.mark.parametrize(
    ("coding", "bits", "group"), [(BYTES, 8, 128), (GROUPS, 4, 64)]
)
def test_weights_are_rounded_as_written(coding, bits, group):
    linear = nn.Linear(128, 40)
    codes, scales = quantized.quantized(linear.weight.detach(), bits, group)
    found = quantized._rounded(coding, linear).dense()
    assert torch.equal(found, codes * scales.float().repeat_interleave(group, 1))


def served(path: Path) -> Model:
    hf = quantizing.loaded(path).to(DEVICE)
    return Model(hf, known=Capability(Mode.TREE, "graph", 0.0))


def fp8(folder: Path, scales: str) -> Path:
    """A Llama with a scale for blocks, the last of them cut off, or for outputs."""
    sizes = tiny_sizes.sizes(256, 192, 4, 2, 1, initializer_range=0.1)
    tiny_models.random(LlamaConfig(vocab_size=128, **sizes)).save_pretrained(folder)
    if scales == "blocks":
        quantizing.floats.fp8(folder, 128)
    else:
        quantizing.int8(folder, floats.E4M3)
    return folder


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        *(("mixed.gguf", 6.1), ("recorded/gptq-4-asym", 5.5), ("recorded/awq", 5.5)),
        *(("blocks", 8.3), ("outputs", 8.1)),
    ],
)
@pytest.mark.usefixtures("interpreted")
def test_checkpoint_is_read_in_its_codes(name, bits, tmp_path):
    """Drafts of the dequantized weights leave the text."""
    path = FILES / name if (FILES / name).exists() else fp8(tmp_path, name)
    plain, coded = served(path), served(path)
    coded.quantize()
    kinds = {type(part) for part in coded.hf.model.layers.modules()}
    assert kinds & {nn.Linear, quantized.QuantizedLinear} == {quantized.QuantizedLinear}
    assert coded.weights == f"{bits} bits"
    close(logits(coded.hf), logits(plain.hf))
    want = finish(engine(coded), CASES)
    answers = finish(engine(coded, LanguageModelDrafter(plain), 3), CASES)
    assert outputs(answers) == outputs(want)
    assert count_accepted(answers) > 2
