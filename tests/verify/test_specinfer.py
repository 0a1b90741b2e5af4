"""Independent siblings, one by one: acceptance as the theory has it."""

import pytest
import torch

from foreword.certify.enumeration import over_uniforms
from foreword.certify.worlds import World, along, drawn_tree
from foreword.verify import rejection, specinfer

from .test_rules import assert_same, problem


@pytest.mark.parametrize("with_probs", [True, False], ids=["drawn", "chosen"])
def test_a_chain_is_verified_token_by_token(with_probs: bool) -> None:
    weights, draft, noise = problem(22, with_probs)
    assert_same(specinfer(weights, draft, noise), rejection(weights, draft, noise))


@pytest.mark.parametrize("many", [2, 3])
def test_acceptance_is_that_of_one_refusal_after_the_other(many: int) -> None:
    """What is left after a refusal does not depend on which token was refused: 1 - prod
    (1 - sum min(t_k, q)).
    """
    world = World.random(5, vocab=4, depth=1)
    draft, likely = drawn_tree(many, distinct=False)(world)
    decided = over_uniforms(specinfer, along(world.target, draft).log(), draft)
    accepted = (likely * decided[:, 1:].sum(dim=(1, 2))).sum().item()
    left, q, none = world.target[0], world.drafter[0], 1.0
    for _ in range(many):
        none *= 1 - torch.minimum(left, q).sum().item()
        left = (left - q).clamp(min=0) / (left - q).clamp(min=0).sum()
    assert accepted == pytest.approx(1 - none, abs=1e-9)
