"""Grids of parameters of which `make test` runs some cases, and `make test-all` all."""

from collections.abc import Callable, Collection, Iterable
from itertools import product
from typing import Any

import pytest

from foreword.native.forward import library

NEEDS_C = pytest.mark.skipif(
    isinstance(library(), str), reason=f"no native kernel here: {library()}"
)


def slow_case(*values: Any) -> Any:
    """Return a case that only `make test-all` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


def _never(case: tuple[Any, ...]) -> bool:
    return False


def grid(
    kept: Collection[tuple[Any, ...]],
    *values: Iterable[Any],
    in_c: Callable[[tuple[Any, ...]], bool] = _never,
) -> list[Any]:
    """Return all combinations; all but the kept ones are slow. `in_c`: needs C."""
    cases = list(product(*values))
    unknown = set(kept) - set(cases)
    assert not unknown, f"no such cases: {unknown}"
    return [
        pytest.param(
            *case,
            marks=[NEEDS_C] * in_c(case) + [pytest.mark.slow] * (case not in kept),
        )
        for case in cases
    ]
