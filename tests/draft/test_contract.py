"""Every drafter in the registry keeps the contract, which is able to say no."""

from collections.abc import Sequence

import pytest
import torch

from contract import CONTRACT, CONTRACT_IN_THE_LOOP, check_form, the_text_is_unaffected
from foreword.draft import METHODS
from foreword.draft.base import Drafter, chosen, first_chain
from foreword.types import Batch, Draft
from grids import slow_case
from running import DTYPE, drafter

every_method = pytest.mark.parametrize("name", METHODS)
IN_FLOAT32 = ("lm", "eagle", "dflash")
"""One method of each kind whose float32 needs no C; `make test-all` has all."""
LATER_CLAUSES = CONTRACT_IN_THE_LOOP[1:]


@every_method
def test_drafter_keeps_the_contract(name):
    for clause in CONTRACT:
        clause(lambda: drafter(name, DTYPE))


@pytest.mark.parametrize(
    "name", [name if name in IN_FLOAT32 else slow_case(name) for name in METHODS]
)
def test_drafter_keeps_the_contract_in_float32(name):
    for clause in CONTRACT:
        clause(lambda: drafter(name), "float32")


@every_method
def test_drafter_changes_no_text(name):
    the_text_is_unaffected(lambda: drafter(name, DTYPE))


@pytest.mark.slow
@pytest.mark.parametrize("clause", LATER_CLAUSES, ids=lambda clause: clause.__name__)
@every_method
def test_drafter_changes_no_later_text(name, clause):
    clause(lambda: drafter(name, DTYPE))


@pytest.mark.slow
@pytest.mark.parametrize("clause", CONTRACT_IN_THE_LOOP, ids=lambda one: one.__name__)
@every_method
def test_drafter_changes_no_text_in_float32(name, clause):
    clause(lambda: drafter(name), "float32")


class Forgetful(Drafter):
    """Counts its calls and never forgets: breaks the contract on repetition."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        for request in batch.requests:
            self.seen[request.id] = self.seen.get(request.id, 0) + 1
        return chosen(
            [[self.seen[s.id]] * n for s, n in zip(batch.requests, nodes, strict=True)]
        )


@pytest.mark.parametrize(
    "clause", ["asking_twice_is_harmless", "pauses_are_harmless", "release_frees"]
)
def test_contract_finds_a_broken_drafter(clause):
    with pytest.raises(AssertionError):
        {one.__name__: one for one in CONTRACT}[clause](Forgetful)


def test_wrong_form_is_found():
    check_form(chosen([[1, 2], [3]]), [2, 2], 10)
    for draft in (chosen([[1, 2, 3], []]), chosen([[1, 10], []]), chosen([[1]])):
        with pytest.raises(AssertionError):
            check_form(draft, [2, 2], 10)


def test_first_chain_follows_first_children():
    #        -1 → 0, 1;  0 → 2, 3;  1 → 4;  3 → 5, and the second row is empty
    parents = torch.tensor([[-1, -1, 0, 0, 1, 3], [-1] * 6])
    tokens = torch.tensor([[10, 11, 12, 13, 14, 15], [0] * 6])
    distributions = torch.eye(16)[tokens]
    chain = first_chain(
        Draft.padded(tokens, parents, torch.tensor([6, 0]), distributions, chain=False)
    )
    assert chain.chain
    assert chain.count.tolist() == [2, 0]
    assert chain.tokens[0].tolist() == [10, 12]
    assert chain.probs[0].argmax(-1).tolist() == [10, 12]
