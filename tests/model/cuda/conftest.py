"""Sums of the interpreter in one order, and a backend that records nothing."""

from functools import partial

import numpy as np
import pytest

from foreword.model.executors.cuda import build, quantized
from foreword.model.executors.cuda.ahead import AheadBackend


@pytest.fixture
def blind(monkeypatch) -> None:
    """The interpreter's BLAS sums otherwise elsewhere in a tile: here in one order."""
    monkeypatch.setattr(
        np,
        "matmul",
        lambda a, b, dtype: (a[:, :, None].astype(dtype) * b[None]).sum(1, dtype=dtype),
    )


@pytest.fixture
def interpreted(monkeypatch) -> None:
    """The backend that a model gets; the interpreter counts programs: here are few."""
    options = dict(runner=lambda work: work, buckets=(16,), kernel=False)
    monkeypatch.setattr(build, "AheadBackend", partial(AheadBackend, **options))
    monkeypatch.setattr(quantized, "OUTPUTS", 256)
