"""The weights of a GGUF file are the model's, heads in llama.cpp's order."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

import starter
from foreword.model import load_tokenizer
from foreword_train.gguf.source import Source, source
from foreword_train.gguf.writer import interleaved, tensors, write


@pytest.fixture(scope="module", params=[torch.bfloat16, torch.float32])
def draft(request, small) -> Source:
    model = AutoModelForCausalLM.from_pretrained(small, dtype=request.param)
    return source("the draft", model, load_tokenizer(small))


def neighbours_rotated(read: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """(head, token, size), pairs (2i, 2i + 1) rotated by angles, as llama.cpp does."""
    even, odd, cos, sin = read[..., ::2], read[..., 1::2], angles.cos(), angles.sin()
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


def test_interleaved_heads_attend_as_in_transformers():
    torch.manual_seed(0)
    config = AutoModelForCausalLM.from_pretrained(starter.draft()).config
    read, heads, size = torch.randn(5, 128), 2, 64
    query, key = torch.randn(128, 128), torch.randn(128, 128)
    rotary, positions = LlamaRotaryEmbedding(config), torch.arange(5)[None]

    def split(weight: torch.Tensor) -> torch.Tensor:
        return (read @ weight.T).view(5, heads, size).transpose(0, 1)

    cos, sin = rotary(read[None], positions)
    q, k = apply_rotary_pos_emb(split(query)[None], split(key)[None], cos, sin)
    angles = positions[0][:, None] * rotary.inv_freq
    ours, theirs = (
        neighbours_rotated(split(weight), angles)
        for weight in (interleaved(query, heads), interleaved(key, heads))
    )
    torch.testing.assert_close(ours @ theirs.mT, (q @ k.mT)[0], rtol=1e-4, atol=1e-2)


def test_file_holds_the_written_weights(draft, tmp_path):
    gguf = pytest.importorskip("gguf")
    write(draft, tmp_path / "model.gguf")
    read = gguf.GGUFReader(tmp_path / "model.gguf")
    assert read.fields["general.architecture"].contents() == "llama"
    assert (
        read.fields["llama.attention.head_count_kv"].contents()
        == draft.model.config.num_key_value_heads
    )
    assert (
        len(read.fields["tokenizer.ggml.tokens"].data) == draft.model.config.vocab_size
    )
    wanted = dict(tensors(draft.model))
    assert {tensor.name for tensor in read.tensors} == set(wanted)
    sizes = [weight.numel() for weight in draft.model.parameters()]  # tied ones once
    assert sum(weight.numel() for weight in wanted.values()) == sum(sizes)
    for tensor in read.tensors:
        assert list(tensor.shape) == list(wanted[tensor.name].shape)[::-1]
        stored = wanted[tensor.name].contiguous().view(torch.uint8).numpy()
        assert np.array_equal(
            np.asarray(tensor.data).view(np.uint8).ravel(), stored.ravel()
        )
