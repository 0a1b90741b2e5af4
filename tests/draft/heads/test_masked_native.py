"""A head's layers in C against their definition; a block ignores its batch."""

import copy

import pytest
import torch
from torch import nn

from foreword.draft.heads import masked_runtime
from foreword.draft.heads.block import BlockRequest
from foreword.draft.heads.masked import Layout, MaskedHead
from foreword.draft.heads.masked_runtime import (
    MaskedBlocks,
    NativeLayers,
    TorchLayers,
    unsupported,
)
from foreword.model import Read
from foreword.model.head_layers import Qwen3Config
from foreword.native.forward import reason
from grids import NEEDS_C
from running import target
from tiny_sizes import HEAD, sizes

SIZES = sizes(384, 96, 6, 2, 2, **HEAD)
BLOCK, ENDS = 5, (33, 34, 40, 70)


def head(**changes: object) -> MaskedHead:
    torch.manual_seed(0)
    config = Qwen3Config(**{**SIZES, **changes})
    layout = Layout(config, (2, 5), BLOCK, 3, sample_from_anchor=False, depth=8)
    made = MaskedHead(layout)
    for parameter in made.parameters():
        nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.1)
    return made


@pytest.fixture
def states() -> torch.Tensor:
    return torch.randn(
        2, max(ENDS), 2 * 384, generator=torch.Generator().manual_seed(1)
    )


def text(id: int, start: int, end: int) -> Read:
    return Read(id, start, [0] * (end - start), keep=0)


def block(id: int, end: int, anchor: int) -> Read:
    return Read(id, end, [anchor, *[3] * (BLOCK - 1)], keep=0)


def hidden(stack: TorchLayers | NativeLayers, states: torch.Tensor) -> torch.Tensor:
    """What is computed in the blocks after a text that grows."""
    stack.open(1, 200)
    found, shown = [], 0
    for end in ENDS:
        stack.store([text(1, shown, end)], states[shown:end])
        found.append(stack.hidden_states([block(1, end, 100 + end)]))
        shown = end
    return torch.cat(found).float()


@NEEDS_C
@torch.inference_mode()
def test_hidden_states_match_the_plain_head(states):
    truth = hidden(TorchLayers(head(), target()), states[0])
    rounded = hidden(TorchLayers(head().bfloat16(), target("bfloat16")), states[0])
    blocks = MaskedBlocks(head(), target("bfloat16"))
    assert isinstance(blocks.executor, NativeLayers)
    found = hidden(blocks.executor, states[0])
    ours, theirs = (
        (one - truth).pow(2).mean().sqrt() / truth.std() for one in (found, rounded)
    )
    # The residual stays in float32 between products here, so we are nearer to the truth
    # than bfloat16 throughout.
    assert ours < theirs
    assert ours < 0.05


@NEEDS_C
@torch.inference_mode()
def test_block_does_not_depend_on_batch_or_chunks(states):
    alone, together = (
        NativeLayers(head().bfloat16(), target("bfloat16")) for _ in range(2)
    )
    for one in (1, 2):
        alone.open(one, 200)
        together.open(one, 200)
    seen = []
    for end in range(4, 30):
        start = end - 1 if end > 4 else 0
        alone.store([text(1, start, end)], states[0, start:end])
        seen.append(alone.hidden_states([block(1, end, end)]))
    alone.store([text(2, 0, 9)], states[1, :9])
    other = alone.hidden_states([block(2, 9, 50)])
    both = torch.cat([states[1, :9], states[0, :29]])
    together.store([text(2, 0, 9), text(1, 0, 29)], both)
    found = together.hidden_states([block(2, 9, 50), block(1, 29, 29)]).split(BLOCK)
    assert torch.equal(found[1], seen[-1])
    assert torch.equal(found[0], other)
    assert not torch.equal(seen[-1], seen[-2])


@NEEDS_C
@torch.inference_mode()
def test_blocks_say_what_plain_blocks_say(states, monkeypatch):
    """For nearly all places the same token is likeliest by the target's LM head."""
    fast = MaskedBlocks(head(), target("bfloat16"))
    with monkeypatch.context() as patch:
        patch.setattr(masked_runtime, "unsupported", lambda *_: "it was asked for")
        plain = MaskedBlocks(head(), target("bfloat16"))
    assert isinstance(plain.executor, TorchLayers)
    said = []
    for blocks in (fast, plain):
        blocks.open(1, 200)
        ends = range(10, 70, 2)
        distributions = [
            blocks.compute([BlockRequest(1, 90 + end, states[0, start:end], start)])
            for end in ends
            for start in [max(0, end - 2) if end > 10 else 0]
        ]
        said.append(torch.cat(distributions).flatten(0, 1).argmax(-1))
    assert (said[0] == said[1]).float().mean() > 0.9
    assert len(said[0].unique()) > 20, "always the same draft token would prove nothing"


def test_what_it_is_not_made_for_is_computed_plainly():
    assert "bfloat16 on CPU" in str(unsupported(head(), target()))
    assert isinstance(MaskedBlocks(head(), target()).executor, TorchLayers)
    if reason() is None:
        odd = head(intermediate_size=100).bfloat16()
        assert "not the usual ones" in str(unsupported(odd, target("bfloat16")))
        assert isinstance(MaskedBlocks(odd, target("bfloat16")).executor, TorchLayers)


@NEEDS_C
def test_its_weights_are_held_once():
    made = copy.deepcopy(head()).bfloat16()
    MaskedBlocks(made, target("bfloat16"))
    assert not any(isinstance(module, nn.Linear) for module in made.modules())
