"""Rules on drafts under a grammar: masked targets, forced text after samples."""

import pytest
import torch

from foreword.verify import RULES
from foreword_lab.certify import worlds
from foreword_lab.certify.enumeration import FEW_BITS, bias

EXACT, VISIBLE = 1e-9, 0.005
TREE_RULES = [
    name for name in RULES if RULES[name].trees and not RULES[name].shares_noise
]


def masked(world: worlds.World, drafter_too: bool) -> worlds.World:
    """The world under a grammar that forbids one token, and another by the length."""

    def without(tables: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        kept = []
        for depth, table in enumerate(tables):
            table = table.clone()
            table[..., depth % world.vocab] = 0.0
            kept.append(table / table.sum(-1, keepdim=True))
        return tuple(kept)

    return worlds.World(
        without(world.target), without(world.drafter) if drafter_too else world.drafter
    )


def then_forced(
    drafting: worlds.Drafting, node: int, *, soft: bool = False
) -> worlds.Drafting:
    """The last node is chosen, not sampled; `soft`: biased by the drafter's."""

    def forced(world: worlds.World) -> worlds.AllDrafts:
        draft, likely = drafting(world)
        assert draft.probs is not None
        draft = worlds.changed(draft, count=torch.full_like(draft.count, node + 1))
        chosen = draft.probs[:, node].argmax(1)
        rows = (draft.tokens[:, node] == chosen).nonzero()[:, 0]
        own = likely / draft.probs[:, node].gather(1, chosen[:, None])[:, 0]
        probs = draft.probs.clone()
        probs[:, node] = torch.nn.functional.one_hot(chosen, world.vocab).to(
            probs.dtype
        )
        seen, distinct = {}, []
        # rows that differ only behind the nodes in use are one draft
        for row in rows.tolist():
            key = tuple(draft.tokens[row, : node + 1].tolist())
            if key not in seen:
                seen[key] = len(distinct)
                distinct.append([row, 0.0])
            distinct[seen[key]][1] += float(own[row])
        index = torch.tensor([row for row, _ in distinct])
        kept = worlds.changed(draft, probs=draft.probs if soft else probs)
        return worlds.AllDrafts(
            worlds.repeat(kept, index),
            torch.tensor([mass for _, mass in distinct], dtype=torch.float64),
        )

    return forced


@pytest.mark.parametrize("drafter_too", [True, False])
@pytest.mark.parametrize("name", RULES)
def test_masked_targets_are_sampled_exactly(name, drafter_too):
    rule = RULES[name]
    world = masked(worlds.World.random(1, vocab=3, depth=2), drafter_too)
    assert bias(rule.verify, worlds.drawn, world, rule.shares_noise) < EXACT


@pytest.mark.parametrize(
    "name", [name for name in RULES if not RULES[name].shares_noise]
)
def test_forced_text_after_a_sampled_chain_is_exact(name):
    verify, world = RULES[name].verify, worlds.World.random(0, vocab=3, depth=3)
    assert bias(verify, then_forced(worlds.drawn, 2), world, gumbel=False) < EXACT
    soft = then_forced(worlds.drawn, 2, soft=True)
    assert bias(verify, soft, world, False, FEW_BITS) > VISIBLE


@pytest.mark.parametrize("name", TREE_RULES)
def test_forced_text_after_a_sampled_tree_is_exact(name):
    verify, world = RULES[name].verify, worlds.World.random(0, vocab=3, depth=2)
    tree = worlds.drawn_tree(2, 1, distinct=RULES[name].lists == "distinct")
    assert bias(verify, then_forced(tree, 2), world, gumbel=False) < EXACT
    soft = then_forced(tree, 2, soft=True)
    assert bias(verify, soft, world, False, FEW_BITS) > VISIBLE
