"""All of the memory is read when its speed is measured, in C or by torch."""

import numpy as np
import pytest
import torch

from foreword.native import bandwidth
from foreword.native.bandwidth import UNIT, _library


@pytest.mark.skipif(_library() is None, reason="no C compiler")
@pytest.mark.parametrize("units", [1, 2, 7])
def test_every_word_is_read_once(units):
    words = torch.randint(2**62, (units * UNIT // 8,))
    assert bandwidth.read(words) == int(
        words.numpy().astype(np.uint64).sum(dtype=np.uint64)
    )


def test_without_a_compiler_torch_reads(monkeypatch):
    monkeypatch.setattr(bandwidth, "_library", lambda: None)
    assert bandwidth.read(torch.ones(UNIT)) == UNIT
