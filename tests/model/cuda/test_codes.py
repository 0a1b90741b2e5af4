"""Products with codes beside their definition, and checkpoints that are read so."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from foreword.model import Mode, Model
from foreword.model.executors.cuda import build as cuda_build
from foreword.model.executors.cuda import quantized
from foreword.model.executors.cuda.chain import ChainBackend
from foreword.model.executors.registry import Capability
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights
from foreword.model.quantized.coded import Coded, Scales
from foreword.native.forward import BYTES, GROUPS
from foreword.types import SamplingParams
from layers import DEVICE, TOLERANCE
from running import Case, engine, finish, outputs

pytest.importorskip("triton")
FILES = Path(__file__).parents[1] / "quantized"
LEVELS = {4: torch.arange(16) - 8, 8: torch.arange(256) - 128}
LEVELS["table"] = (torch.arange(16) - 7) ** 3 // 8
GREEDY = SamplingParams(max_tokens=3, ignore_eos=True)
CASES = [Case(tuple(range(7, 12)), GREEDY), Case((40, 3), GREEDY)]


def matrix(levels: torch.Tensor, group: int, spans: int | None, offset: bool) -> Coded:
    """Random codes of 40 outputs; numbers of two levels where there are spans."""
    count = 192 // group
    factors = None if spans is None else torch.randint(-64, 64, (40, count))
    values = torch.rand(40, spans or count).half().float() / 64
    offsets = Scales(-values.flip(0), factors) if offset else None
    codes = torch.randint(0, len(levels), (40, 192), dtype=torch.uint8)
    levels = levels.to(torch.int8)
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


@pytest.mark.parametrize(
    ("coding", "bits", "group"), [(BYTES, 8, 128), (GROUPS, 4, 64)]
)
def test_weights_are_rounded_as_written(coding, bits, group):
    linear = nn.Linear(128, 40)
    codes, scales = quantized.quantized(linear.weight.detach(), bits, group)
    found = quantized._rounded(coding, linear).dense()
    assert torch.equal(found, codes * scales.float().repeat_interleave(group, 1))


@pytest.mark.parametrize(
    ("name", "bits"),
    [("mixed.gguf", 6.1), ("recorded/gptq-4-asym", 5.5), ("recorded/awq", 5.5)],
)
def test_checkpoint_is_read_in_its_codes(name, bits, monkeypatch):
    options = dict(runner=lambda work: work, buckets=(16,), kernel=False)
    graph = partial(ChainBackend, **options)
    monkeypatch.setattr(quantized, "OUTPUTS", 256)  # the interpreter counts programs
    monkeypatch.setattr(cuda_build, "ChainBackend", graph)
    path, found = FILES / name, []
    for takes in (False, True):
        hf = load_weights(path, read_config(path), torch.float32).to(DEVICE)
        model = Model(hf, known=Capability(Mode.TREE, "graph", 0.0))
        if takes:
            model.quantize()
        found.append(outputs(finish(engine(model), CASES)))
    kinds = {type(part) for part in hf.model.layers.modules()}
    assert kinds & {nn.Linear, quantized.QuantizedLinear} == {quantized.QuantizedLinear}
    assert model.weights == f"{bits} bits"
    assert found[0] == found[1]
