"""Layers of heads: angles in float32, products in bfloat16, weights in float32."""

import torch

from foreword.model import head_layers
from foreword.model.head_layers import Layer, Rotary, sizes


def test_angles_are_not_rounded_with_the_weights_around_them():
    """A frequency in bfloat16 is off by up to 0.4%: a radian after 400 positions."""
    states, positions = torch.zeros(400, 64), torch.arange(400)
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16}
    llama = head_layers.LlamaRotaryEmbedding(head_layers.LlamaConfig(**sizes))
    qwen = head_layers.Rotary(head_layers.Qwen3Config(**sizes))
    exact = llama(states[None], positions[None])[0], qwen(states, positions)[0]
    found = (
        llama.bfloat16()(states[None], positions[None])[0],
        qwen.bfloat16()(states, positions)[0],
    )
    assert all(map(torch.equal, exact, found))


SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def attend(number, query, key, value):
    """Each row sees itself alone."""
    return value.repeat_interleave(query.shape[1] // value.shape[1], 1).to(query.dtype)


def test_norms_keep_their_dtype_under_autocast():
    """In others torch warns, which is an error here, and leaves its fused norm."""
    torch.manual_seed(0)
    config = sizes(SIZES, "here")
    layer, rotary, rows = Layer(config), Rotary(config), torch.randn(5, 32)
    angles = rotary(rows, torch.arange(5))
    wanted = layer(0, rows, angles, attend)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(0, rows, angles, attend)
        assert layer.input_layernorm(rows.bfloat16()).dtype == torch.float32
    torch.testing.assert_close(found.float(), wanted, atol=0.05, rtol=0.05)
