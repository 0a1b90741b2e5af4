"""Experts in C, in models large enough for several threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GptOssConfig, Qwen3MoeConfig

import tiny_models
from foreword.model.executors.native.backend import NativeBackend
from foreword.model.executors.native.build import build
from foreword.model.kv.reads import Read
from foreword.native.forward import library
from tiny_models import near_truth, random, with_truth
from tiny_sizes import sizes

pytestmark = pytest.mark.skipif(
    isinstance(library(), str), reason=f"no native kernel here: {library()}"
)
THREADS = 4


def backend() -> NativeBackend:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=320,
        hidden_size=256,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=240,
        initializer_range=0.1,
    )
    made = build(AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval())
    made.open(1, 200)
    return made


def scores(threads: int, rounds: int) -> torch.Tensor:
    """Return the scores of many short reads, each routed to other experts."""
    torch.set_num_threads(threads)
    made, generator = backend(), torch.Generator().manual_seed(1)
    assert made.threads == threads
    said = []
    for number in range(rounds):
        tokens = torch.randint(320, (1 + number % 5,), generator=generator).tolist()
        said.append(made.read([Read(1, 0, tokens, keep=len(tokens))]).clone())
    return torch.cat(said)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_bits_do_not_depend_on_threads(rows):
    before, tokens = torch.get_num_threads(), list(range(20, 20 + rows))
    found = []
    try:
        for threads in (1, 2, THREADS):
            torch.set_num_threads(threads)
            found.append(backend().read([Read(1, 0, tokens, keep=rows)]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_gates_and_values_of_gpt_oss_are_clamped():
    config = GptOssConfig(
        **sizes(64, 96, 4, 2, 2),
        vocab_size=320,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        initializer_range=0.15,
        max_position_embeddings=256,
    )
    model, generator = random(config), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for layer in model.model.layers:
            biases = layer.mlp.experts.gate_up_proj_bias
            biases.copy_(10 * torch.randn(biases.shape, generator=generator))
    models, tokens = with_truth(model), list(range(20, 60))
    made = build(models[0])
    made.open(1, 100)
    ours, theirs = near_truth(
        models, tokens, made.read([Read(1, 0, tokens, keep=len(tokens))])
    )
    assert ours < theirs
    assert ours < 0.05


@pytest.mark.slow
def test_late_thread_does_not_wait_for_a_later_layer():
    """More threads than cores, some late in every forward; in a process of its own."""
    command = (
        "import test_experts as t; import torch; assert "
        f"torch.equal(t.scores({THREADS}, 400), t.scores(1, 400))"
    )
    paths = os.pathsep.join(
        str(Path(module.__file__).parent)
        for module in (sys.modules[__name__], tiny_models)
    )
    subprocess.run(
        [sys.executable, "-c", command],
        env=os.environ | {"PYTHONPATH": paths},
        check=True,
        timeout=90,
    )
