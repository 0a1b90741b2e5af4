"""Rotary embeddings by a text's length: drafts score as in plain decoding."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from foreword.model import Model, Read
from foreword.model.executors.torch.backend import dynamic_rope_of
from grids import slow_case
from tiny_sizes import sizes

BORDER = 32
ROPES: dict[str, dict[str, Any]] = {
    "longrope": dict(
        short_factor=[1.0] * 8,
        long_factor=[4.0] * 8,
        factor=4.0,
        original_max_position_embeddings=BORDER,
    ),
    "dynamic": dict(factor=4.0),
}
PARENTS = [-1, 0, 1, 2, -1, 4, 4]
TEXT = torch.randint(320, (80,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module", params=ROPES)
def model(request):
    rope = {"rope_type": request.param, "rope_theta": 100.0, **ROPES[request.param]}
    context = 128 if request.param == "longrope" else BORDER
    torch.manual_seed(1)
    config = LlamaConfig(
        **sizes(64, 96, 4, 2, 2),
        vocab_size=320,
        max_position_embeddings=context,
        initializer_range=0.3,
        rope_parameters=rope,
    )
    return Model(LlamaForCausalLM(config).eval(), backend="pool")


def plainly(model: Model, text: list[int], start: int) -> torch.Tensor:
    """What is said after each token from `start` on, one after the other."""
    model.open(9, 128)
    model.read([Read(9, 0, text[:start], keep=0)])
    said = torch.cat(
        [model.read([Read(9, i, [text[i]])]) for i in range(start, len(text))]
    )
    model.close(9)
    return said


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "start", [BORDER - 4, BORDER, *map(slow_case, (10, BORDER - 1, BORDER + 5))]
)
def test_draft_tokens_score_as_in_plain_decoding(model, start):
    model.open(1, 128)
    model.open(2, 128)
    model.read([Read(2, 0, TEXT[:70], keep=0)])  # a longer text beside it
    model.read([Read(1, 0, TEXT[:start], keep=0)])
    chain = model.read([Read(1, start, TEXT[start : start + 8], keep=8)])
    torch.testing.assert_close(
        chain, plainly(model, TEXT[: start + 8], start), atol=1e-4, rtol=1e-4
    )
    tree = model.read([Read(1, start, TEXT[start : start + 8], PARENTS, keep=8)])
    paths: list[list[int]] = []
    for node, parent in enumerate(PARENTS):
        paths.append(([] if parent < 0 else paths[parent]) + [TEXT[start + 1 + node]])
        wanted = plainly(model, TEXT[: start + 1] + paths[-1], start)
        torch.testing.assert_close(tree[node + 1], wanted[-1], atol=1e-4, rtol=1e-4)
    model.close(1)
    model.close(2)


def test_hidden_states_come_in_order(model):
    model.open(1, 128)
    model.read([Read(1, 0, TEXT[: BORDER - 3], keep=0)])
    said, hidden = model.read_hidden(
        [Read(1, BORDER - 3, TEXT[BORDER - 3 : BORDER + 4], keep=7)], (2,)
    )
    model.close(1)
    torch.testing.assert_close(model.lm_head(hidden), said, atol=1e-4, rtol=1e-4)


def test_a_read_stays_whole_where_nothing_depends_on_it(model):
    length = dynamic_rope_of(model.hf)
    assert length is not None
    for read in (
        Read(1, 0, TEXT[:20], keep=6),
        Read(1, 20, TEXT[:40], keep=1),
        Read(1, 5, TEXT[:8], PARENTS, keep=8),
    ):
        assert length.parts(read) == [read]
    few = length.parts(Read(1, BORDER - 2, TEXT[:8], PARENTS, keep=3))
    assert [part.keep for part in few] == [0, 0, 0, 0, 0, 1, 1, 1]
    beyond = Read(1, BORDER, TEXT[:8], keep=8)
    assert len(length.parts(beyond)) == (1 if length.twice else 8)
