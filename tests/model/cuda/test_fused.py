"""Fused kernels beside the code of transformers and the plain product."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.llama import modeling_llama as llama

from foreword.errors import ModelError
from foreword.model import Read
from foreword.model.executors.cuda import fused, quantized
from foreword.model.executors.cuda.backend import CudaGraphBackend
from foreword.model.executors.torch.packed_linear import swap_out
from foreword.model.quantized.write import quantized as quantize
from layers import DEVICE, TOLERANCE
from tiny_models import build

pytest.importorskip("triton")


def drawn(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size).to(DEVICE, dtype)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    within = TOLERANCE[wanted.dtype]
    torch.testing.assert_close(found, wanted, atol=within, rtol=within)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@torch.no_grad()
def test_norm_is_that_of_llama(dtype):
    for dim in (24, 64):
        norm = llama.LlamaRMSNorm(dim, eps=1e-5).to(DEVICE, dtype)
        norm.weight.copy_(drawn(dim))
        x, residual = drawn(2, 3, dim, dtype=dtype), drawn(2, 3, dim, dtype=dtype)
        alone, same = fused.rms_norm(x, norm.weight, 1e-5)
        close(alone, norm(x))
        assert same is x
        normed, summed = fused.rms_norm(x, norm.weight, 1e-5, residual)
        close(summed, x + residual)  # the interpreter cuts bfloat16 off
        close(normed, norm(x + residual))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@torch.no_grad()
def test_rotary_is_that_of_llama(dtype):
    query = drawn(1, 5, 4, 24, dtype=dtype).transpose(1, 2)
    key = drawn(1, 5, 2, 24, dtype=dtype).transpose(1, 2)
    cos, sin = drawn(1, 5, 24, dtype=dtype), drawn(1, 5, 24, dtype=dtype)
    found = fused.rotated(query, key, cos, sin)
    for one, other in zip(
        found, llama.apply_rotary_pos_emb(query, key, cos, sin), strict=True
    ):
        close(one, other)


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@torch.no_grad()
def test_product_is_the_plain_one(form, dtype):
    linear = nn.Linear(128, 40, bias=form == "int8").to(DEVICE, dtype)
    layer = quantized.QuantizedLinear(linear, form)
    x = drawn(1, 70, 128, dtype=dtype)
    group = 64 if form == "int4" else 128
    codes, scales = quantize(linear.weight.float(), 8 if form == "int8" else 4, group)
    if form == "int4":
        assert torch.equal(quantized.unpacked(layer.codes), codes)
        assert layer.codes.nbytes == codes.nbytes // 2
    wanted = quantized.multiply(x[0], codes, scales, linear.bias)
    close(layer(x)[0], wanted)
    dense = codes.float() * scales.float().repeat_interleave(group, 1)
    bias = None if linear.bias is None else linear.bias.float()
    plain = nn.functional.linear(x[0].float(), dense, bias)
    close(wanted, plain.to(dtype))
    with torch.enable_grad():
        assert torch.equal(layer(x)[0], wanted)


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("form", ["int8", "int4"])
@torch.no_grad()
def test_bits_of_a_row_do_not_depend_on_other_rows(form):
    layer = quantized.QuantizedLinear(nn.Linear(128, 32).to(DEVICE), form)
    x = drawn(70, 128)
    want = layer(x)
    assert torch.equal(layer(x[:3]), want[:3])
    assert torch.equal(layer(x.roll(9, 0)).roll(-9, 0), want)


class Launches(TorchDispatchMode):
    """Counts the operations of torch, most of which launch a kernel."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


class Counted:
    """Stands in place of every kernel, and counts its launches."""

    def __init__(self, launches: Launches) -> None:
        self.launches = launches

    def __getattr__(self, name: str) -> "Counted":
        return self

    def __getitem__(self, grid: tuple[int, ...]) -> "Counted":
        return self

    def __call__(self, *given, **constants) -> None:
        self.launches.count += 1


def logits(hf) -> torch.Tensor:
    backend = CudaGraphBackend(hf, lambda work: work, (16,), kernel=False)
    backend.open(1, 32)
    return backend.read([Read(1, 0, [5, 6, 7], keep=3)])


def launches(hf, monkeypatch) -> int:
    with monkeypatch.context() as patch, Launches() as counted:
        kernels = Counted(counted)
        patch.setattr(fused, "fused", lambda: kernels)
        logits(hf)
    return counted.count


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gemma2"])
def test_swaps_leave_the_scores_and_launch_less(name, monkeypatch):
    hf = build(name).to(DEVICE)
    before = list(hf.named_modules())
    weights = list(hf.state_dict())
    want, plainly = logits(hf), launches(hf, monkeypatch)
    swaps = fused.swap_in_fused(hf)
    close(logits(hf), want)
    assert [*hf.state_dict()] == weights
    assert launches(hf, monkeypatch) < plainly
    swap_out(swaps)
    assert [*hf.named_modules()] == before
    assert torch.equal(logits(hf), want)


def test_parts_of_other_code_keep_it():
    assert fused.swap_in_fused(build("gpt2")) == []
    # its norm is of another code, its rotary embedding is that of Llama
    swaps = fused.swap_in_fused(build("gemma"))
    assert {type(swap.original).__name__ for swap in swaps} == {"GemmaAttention"}


def test_hooked_and_patched_parts_keep_their_code():
    hf = build("llama").to(DEVICE)
    layer = hf.model.layers[0]
    heard = []
    layer.post_attention_layernorm.register_forward_hook(
        lambda *given: heard.append(given)
    )
    forward = layer.self_attn.forward
    layer.self_attn.forward = lambda *args, **options: forward(*args, **options)
    swaps = fused.swap_in_fused(hf)
    swapped = [swap.original for swap in swaps]
    assert layer.post_attention_layernorm not in swapped
    assert layer.self_attn not in swapped
    # a hook that comes later is called as well
    hf.model.layers[1].post_attention_layernorm.register_forward_hook(
        lambda *given: heard.append(given)
    )
    logits(hf)
    assert len(heard) == 2


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_quantized_model_runs_and_is_restored(form):
    hf = build("llama").to(DEVICE)
    want = logits(hf)
    before = list(hf.named_modules())
    swaps = quantized.swap_in_codes(hf, form)
    assert type(hf.lm_head) is nn.Linear
    # 96 inputs are no multiple of 64
    assert type(hf.model.layers[0].mlp.down_proj) is nn.Linear
    found = logits(hf)
    assert not torch.equal(found, want)
    assert (found - want).std() < (0.02 if form == "int8" else 0.4) * want.std()
    swap_out(swaps)
    assert [*hf.named_modules()] == before


def test_model_without_a_layer_to_quantize_is_refused():
    with pytest.raises(ModelError, match=r"GPT2LMHead.* in int4.*Leave 'weights' out"):
        quantized.swap_in_codes(build("gpt2"), "int4")
