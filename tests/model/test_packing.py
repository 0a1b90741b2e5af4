"""A text that outgrows its room is refused, however the model is driven, and nothing that is held is lost by it."""

import pytest
import torch

import architectures
from foreword.errors import ModelError
from foreword.model.native import NativeDriver
from foreword.model.plan import Read
from foreword.model.pooled import PooledDriver
from foreword.native.llama import library

NATIVE = pytest.mark.skipif(isinstance(library(), str), reason=f"no native kernel here: {library()}")
ROOM = 64
"""Capacities are rounded up to whole pages."""


@pytest.mark.parametrize("drive", [PooledDriver, pytest.param(NativeDriver, marks=NATIVE)])
def test_a_text_that_outgrows_its_room_is_refused_before_anything_is_written(drive):
    model = architectures.build("llama-gqa").to(torch.bfloat16).eval()
    if drive is PooledDriver:
        model.set_attn_implementation("foreword")
    driver = drive(model)
    text = list(range(3, 3 + ROOM))
    driver.open(1, ROOM - 4)
    driver.open(2, ROOM)
    driver.read([Read(1, 0, text[:40], keep=0), Read(2, 0, text[:-1], keep=0)])
    driver.read([Read(1, 40, text[40:])])  # just fits
    for outgrown in (Read(1, 40, text[:25]), Read(1, 40, text[:22], [-1] * 25, held=3)):
        with pytest.raises(ModelError, match=f"sequence 1 outgrew its room of {ROOM} tokens"):
            driver.read([Read(2, 0, text[::-1]), outgrown])
    driver.open(3, ROOM)
    assert torch.equal(driver.read([Read(2, ROOM - 1, text[-1:])]), driver.read([Read(3, 0, text)]))
