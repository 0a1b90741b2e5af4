"""Parts that trained heads are made of: what must survive a change of dtype."""

import torch

from foreword.model import head_layers


def test_angles_are_not_rounded_with_the_weights_around_them():
    """A frequency in bfloat16 is off by up to 0.4%: a radian after 400 positions."""
    states, positions = torch.zeros(400, 64), torch.arange(400)
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16}
    llama, qwen = (
        head_layers.LlamaRotaryEmbedding(head_layers.LlamaConfig(**sizes)),
        head_layers.Rotary(head_layers.Qwen3Config(**sizes)),
    )
    exact = llama(states[None], positions[None])[0], qwen(states, positions)[0]
    found = (
        llama.bfloat16()(states[None], positions[None])[0],
        qwen.bfloat16()(states, positions)[0],
    )
    assert all(map(torch.equal, exact, found))
