"""Shapes and types are checked at every call in tests: sizes named twice agree, and what comes back is seen."""

from collections.abc import Iterator
from dataclasses import dataclass

import jaxtyping
import pytest
import torch
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float, Int
from torch import Tensor

from checking import EACH, MANY, Now
from foreword.types import SamplingParams
from foreword.verify import RULES

checked = jaxtyping.jaxtyped(typechecker=beartype(conf=BeartypeConf(is_pep484_tower=True)))


@checked
def product(a: Float[Tensor, "n k"], b: Float[Tensor, "k m"], *, wrong: int = 0) -> Float[Tensor, "n m"]:
    return (a @ b)[: len(a) - wrong]


@checked
@dataclass
class Held:
    tokens: Int[Tensor, " n"]
    parents: Int[Tensor, " n"]

    @property
    @checked
    def size(self) -> int:
        return str(len(self.tokens))  # pyright: ignore[reportReturnType]

    @classmethod
    @checked
    def empty(cls, size: int) -> "Held":
        return cls(torch.zeros(size, dtype=torch.long), torch.zeros(size, dtype=torch.long))


@checked
def numbers(most: float) -> Iterator[int]:
    yield from range(int(most))


def refused(call, *args, **options) -> None:
    with pytest.raises(BeartypeCallHintViolation):
        call(*args, **options)


def test_sizes_of_the_same_name_agree_from_argument_to_argument_and_with_what_comes_back():
    assert product(torch.ones(2, 3), torch.ones(3, 4)).shape == (2, 4)
    assert product(torch.ones(5, 1), torch.ones(1, 1)).shape == (5, 1)  # names hold for one call
    refused(product, torch.ones(2, 3), torch.ones(4, 4))
    refused(product, torch.ones(2, 3), torch.ones(3, 4).long())
    refused(product, torch.ones(2, 3), torch.ones(3, 4), wrong=1)


def test_fields_methods_and_properties_are_checked():
    held = Held.empty(3)
    refused(Held, held.tokens, held.parents[:2])
    refused(Held.empty, "3")
    refused(lambda: held.size)
    assert list(numbers(2)) == [0, 1]
    refused(lambda: list(numbers("2")))


def test_functions_of_ours_are_checked():
    refused(SamplingParams, max_tokens="4")
    refused(RULES["match"].verify, None, None, None)


def test_what_is_called_again_and_again_is_checked_now_and_then_unless_all_is(monkeypatch):
    def wrong_calls_found(calls: int) -> int:
        found = 0
        for _ in range(calls):
            try:
                product(torch.ones(1, 1), torch.ones(1, 1), wrong=1)
            except BeartypeCallHintViolation:
                found += 1
        return found

    monkeypatch.setattr(Now, "every", False)
    assert wrong_calls_found(MANY) == MANY
    assert wrong_calls_found(10 * EACH) == 10
    monkeypatch.setattr(Now, "test", Now.test + 1)
    assert wrong_calls_found(MANY) == MANY
    monkeypatch.setattr(Now, "every", True)
    assert wrong_calls_found(2 * MANY) == 2 * MANY


@pytest.mark.usefixtures("unchecked")
def test_a_test_may_ask_for_none():
    assert product(torch.ones(2, 3), torch.ones(3, 4), wrong=1).shape == (1, 4)
