"""Blocks: computed once a round for all, read by depth as trees and chains grow."""

from collections.abc import Sequence

import pytest
import torch
from torch.nn import functional

from drafters import AT_ONCE, IN_C, check_same, grown
from foreword.draft.heads.block import BlockDrafter, BlockRequest, HeadBlocks
from foreword.draft.heads.block_native import NativeBlockTrees
from foreword.errors import ModelError
from foreword.model import Read
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Request, SamplingParams
from foreword.types.growth import TreeRequest
from grids import NEEDS_C
from running import Case, prompts, target

DEEP = 4


class Seeded(HeadBlocks):
    """A head whose distributions are drawn from the anchor and its position."""

    hidden_layers = (4,)

    def __init__(self) -> None:
        super().__init__(torch.nn.Identity(), target(), DEEP)
        self.asked: list[list[BlockRequest]] = []

    def compute(self, requests: Sequence[BlockRequest]) -> torch.Tensor:
        self.asked.append(list(requests))
        made = (
            torch.Generator().manual_seed(one.anchor * 1000 + one.end)
            for one in requests
        )
        return torch.stack(
            [
                3 * torch.randn(DEEP, target().vocab, generator=generator)
                for generator in made
            ]
        )


class Independent(Seeded):
    def ahead(self, read: Read) -> torch.Tensor:
        return self.block(read.id)


class Dependent(Seeded):
    """Each draft token depends on the one before it."""

    def after(self, distributions: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        return distributions + torch.stack(
            [distributions[0].roll(token) for token in tokens]
        )


def started(
    drafter: BlockDrafter, prompt: tuple[int, ...], temperature: float = 0.8
) -> Request:
    one = Case(
        prompt, SamplingParams(temperature=temperature, seed=4, max_tokens=20)
    ).request(target().eos)
    drafter.on_hidden_states(one, 0, torch.zeros(len(prompt) - 1, 3))
    return one


def batch(*sequences: Request, shared: bool = True) -> Batch:
    return Batch(sequences, NoiseStreams(target().vocab, shared=shared))


def test_one_forward_a_round_for_all_sequences():
    for blocks, shared in (
        (Independent(), True),
        (Dependent(), True),
        (Dependent(), False),
    ):
        drafter = BlockDrafter(blocks)
        sequences = [started(drafter, prompt) for prompt in prompts()[:3]]
        draft = drafter.propose(batch(*sequences, shared=shared), [8, 8, 8])
        assert [[one.id for one in wanted] for wanted in blocks.asked] == [
            [one.id for one in sequences]
        ]
        assert all(len(tree) == 8 or not shared for tree in draft.trees)
        assert max(map(max, (tree.depths for tree in draft.trees))) <= DEEP


def test_states_are_shown_once_and_in_order():
    blocks = Independent()
    drafter = BlockDrafter(blocks)
    one = started(drafter, prompts()[0])
    drafter.propose(batch(one), [2])
    drafter.propose(batch(one), [2])
    one.tokens += [7, 8, 9]
    # the target was not read there yet
    assert drafter.propose(batch(one), [2]).trees[0].tokens == []
    drafter.on_hidden_states(one, len(one.tokens) - 4, torch.arange(9.0).view(3, 3))
    drafter.propose(batch(one), [2])
    assert [len(wanted.states) for asked in blocks.asked for wanted in asked] == [
        len(prompts()[0]) - 1,
        0,
        3,
    ]
    assert torch.equal(blocks.asked[-1][0].states, torch.arange(9.0).view(3, 3))
    assert [asked[0].anchor for asked in blocks.asked] == [prompts()[0][-1]] * 2 + [9]


@pytest.mark.parametrize("most", [1, 5, 24])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_all_levels_at_once_grow_the_tree_that_levels_grow(
    temperature, most, monkeypatch
):
    def start():
        drafter = BlockDrafter(Independent())
        one = started(drafter, prompts()[1], temperature)
        return drafter, one, batch(one)

    by_level = grown(start, most, monkeypatch, AT_ONCE)
    assert len(by_level[0]) == most
    check_same(grown(start, most, monkeypatch), by_level)
    check_same(grown(start, most, monkeypatch, IN_C), by_level)


@NEEDS_C
@pytest.mark.parametrize("based", [False, True])
def test_odd_vocabulary_grows_the_padded_tree(based):
    draws = torch.Generator().manual_seed(5)
    distributions = torch.randn(3, 61, generator=draws)
    distributions[:, 60] = 3.0
    table = torch.randn(2, 61, 16, generator=draws).bfloat16() if based else None
    ask = TreeRequest(40, 8, 3, 16, 40, 0.0, 1.0, 0.8, 7, ())
    wide = NativeBlockTrees(
        64, None if table is None else tuple(functional.pad(table, (0, 0, 0, 3)))
    )
    beyond = functional.pad(distributions, (0, 3), value=-torch.inf)
    wanted = wide.grow(beyond, 60, ask)
    found = NativeBlockTrees(61, None if table is None else tuple(table)).grow(
        distributions, 60, ask
    )
    assert found.tokens == wanted.tokens
    assert found.parents == wanted.parents
    assert found.probabilities == wanted.probabilities
    assert len(found.tokens) == 40
    assert max(found.tokens) == 60


def test_a_draft_token_follows_from_the_one_before_it():
    """A node says the row of its depth, bettered by its token: not by its uncle's."""
    drafter = BlockDrafter(Dependent())
    one = started(drafter, prompts()[0], 0.0)
    tree = drafter.propose(batch(one), [16]).trees[0]
    distributions = drafter.blocks.block(one.id)
    assert len(set(tree.parents)) > 3
    for node in range(-1, len(tree)):
        children = [
            tree.tokens[child]
            for child, parent in enumerate(tree.parents)
            if parent == node
        ]
        token = one.tokens[-1] if node < 0 else tree.tokens[node]
        row = distributions[tree.depths[node + 1]] if children else distributions[0]
        said = row + row.roll(token)
        assert children == said.topk(len(children)).indices.tolist()


def test_hidden_states_that_the_target_has_not_are_refused():
    blocks = Independent()
    for hidden_layers in ((-1,), (2, 9)):
        blocks.hidden_layers = hidden_layers
        with pytest.raises(ModelError, match="has states 0 to 8"):
            BlockDrafter(blocks)
