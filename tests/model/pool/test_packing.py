"""A text that outgrows its room is refused on any backend; no rows are lost."""

import pytest
import torch

import tiny_models
from foreword.errors import ModelError
from foreword.model.executors.native.build import build
from foreword.model.executors.torch.backend import PoolBackend
from foreword.model.kv.reads import Read
from grids import NEEDS_C

ROOM = 64
"""Capacities are rounded up to whole pages."""


@pytest.mark.parametrize("drive", [PoolBackend, pytest.param(build, marks=NEEDS_C)])
def test_text_beyond_its_room_is_refused_before_writing(drive):
    model = tiny_models.build("llama-gqa").to(torch.bfloat16).eval()
    if drive is PoolBackend:
        model.set_attn_implementation("foreword")
    backend = drive(model)
    text = list(range(3, 3 + ROOM))
    backend.open(1, ROOM - 4)
    backend.open(2, ROOM)
    backend.read([Read(1, 0, text[:40], keep=0), Read(2, 0, text[:-1], keep=0)])
    backend.read([Read(1, 40, text[40:])])  # just fits
    for outgrown in (Read(1, 40, text[:25]), Read(1, 40, text[:22], [-1] * 25, held=3)):
        with pytest.raises(
            ModelError, match=f"it exceeds its capacity of {ROOM} tokens"
        ):
            backend.read([Read(2, 0, text[::-1]), outgrown])
    backend.open(3, ROOM)
    assert torch.equal(
        backend.read([Read(2, ROOM - 1, text[-1:])]), backend.read([Read(3, 0, text)])
    )
