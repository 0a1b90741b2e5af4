"""Fused kernels beside the code of transformers and the plain product."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.llama import modeling_llama as llama

from drafters import RandomTree, known
from foreword.errors import ModelError
from foreword.model import Mode, Model, Read
from foreword.model.executors.cuda import fused, quantized
from foreword.model.executors.cuda.backend import CudaGraphBackend
from foreword.model.executors.registry import Capability
from foreword.model.executors.torch.hooks import replaced_forwards
from foreword.model.executors.torch.packed_linear import swap_out
from foreword.native.forward import GROUPS
from foreword.types import SamplingParams
from layers import DEVICE, TOLERANCE
from running import Case, engine, finish, outputs
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
def test_rotary_is_that_of_llama(dtype, monkeypatch):
    query = drawn(1, 5, 4, 24, dtype=dtype).transpose(1, 2)
    key = drawn(1, 5, 2, 24, dtype=dtype).transpose(1, 2)
    angles = drawn(1, 5, 24, dtype=dtype), drawn(1, 5, 24, dtype=dtype)
    wanted = llama.apply_rotary_pos_emb(query, key, *angles)
    monkeypatch.setattr(llama, "apply_rotary_pos_emb", None)
    for one, other in zip(fused.rotated(query, key, *angles), wanted, strict=True):
        close(one, other)


class Launches(TorchDispatchMode):
    """Counts the operations of torch; most of them launch a kernel."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def logits(hf) -> torch.Tensor:
    backend = CudaGraphBackend(hf, lambda work: work, (16,), kernel=False)
    backend.open(1, 32)
    return backend.read([Read(1, 0, [5, 6, 7], keep=3)])


def fused_logits(hf) -> torch.Tensor:
    with replaced_forwards(fused.fused_forwards(hf)):
        return logits(hf)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
def test_fused_forwards_leave_the_scores_and_launch_less(name, monkeypatch):
    hf = build(name).to(DEVICE)
    want = logits(hf)
    close(fused_logits(hf), want)
    assert torch.equal(logits(hf), want)
    with Launches() as plain:
        logits(hf)
    # one operation in place of each kernel
    monkeypatch.setattr(fused, "rms_norm", lambda x, *_: (x.clone(), x))
    monkeypatch.setattr(fused, "rotated", lambda query, key, *_: (query.clone(), key))
    with Launches() as fewer:
        fused_logits(hf)
    assert fewer.count < plain.count


def replaced(hf) -> set[str]:
    return {type(part).__name__ for part in fused.fused_forwards(hf)}


def test_parts_of_other_code_keep_it():
    assert not replaced(build("gpt2"))
    # its norm is of another code, its rotary embedding is that of Llama
    assert replaced(build("gemma")) == {"GemmaAttention"}


def test_hooked_and_patched_parts_keep_their_code():
    hf = build("llama").to(DEVICE)
    first, second = hf.model.layers
    calls = []
    first.post_attention_layernorm.register_forward_hook(
        lambda *each: calls.append(each)
    )
    forward = first.self_attn.forward
    first.self_attn.forward = lambda *args, **options: forward(*args, **options)
    fused_logits(hf)
    assert len(calls) == 1
    found = fused.fused_forwards(hf)
    assert first.post_attention_layernorm not in found
    assert first.self_attn not in found
    assert {second, second.self_attn, second.post_attention_layernorm} <= {*found}


def test_model_without_a_layer_to_quantize_is_refused():
    with pytest.raises(ModelError, match=r"GPT2LMHead.*Leave 'weights' out"):
        quantized.swap_in_codes(build("gpt2"), GROUPS)


@pytest.mark.usefixtures("interpreted")
def test_quantized_target_is_served_and_given_back():
    """Drafts leave the text of the quantized model."""
    hf, swaps = build("llama").to(DEVICE), []
    before = list(hf.named_modules())
    model = Model(hf, known=Capability(Mode.TREE, "graph", 0.0), swaps=swaps)
    with pytest.raises(ModelError, match="only backend 'native' reads them"):
        model.quantize(kv="int8")
    want = logits(hf)
    model.quantize("int4")
    assert 0 < (logits(hf) - want).std() < 0.4 * want.std()
    first = hf.model.layers[0].mlp
    # 96 inputs are no multiple of 64
    kinds = [type(part) for part in (first.up_proj, first.down_proj, hf.lm_head)]
    assert kinds == [quantized.QuantizedLinear, nn.Linear, nn.Linear]
    assert model.forms == {"weights": "int4"}
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    cases = [Case(tuple(range(7, 12)), params)]
    want = finish(engine(model), cases)
    drafter = RandomTree(known(want), 0.3)
    assert outputs(finish(engine(model, drafter, 4), cases)) == outputs(want)
    swap_out(swaps)
    assert [*hf.named_modules()] == before
