"""Texts and log-probabilities are equal bit for bit on torch, beside any read."""

import pytest
import torch

import starter
import zoo
from foreword.model import Mode, Model
from sweep import DTYPES, differing

DRIVEN = {
    "cache": tuple(
        "llama bloom gemma3_text mixtral lfm2 qwen3_5_text falcon_h1".split()
    ),
    "pool": ("llama", "gpt2", "gpt_oss", "axk1", "gemma3n_text"),
    "plain": ("llama", "mamba", "qwen3_5_text"),
}


USUAL = {
    ("cache", "lfm2", "float32"),
    ("cache", "qwen3_5_text", "bfloat16"),
    ("pool", "llama", "bfloat16"),
    ("pool", "gpt_oss", "float32"),
    ("plain", "mamba", "bfloat16"),
}
"""Each backend with each dtype once, but for one row at a time, which is slow."""


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore:.*runs in mode")
@pytest.mark.parametrize(
    ("backend", "kind", "dtype"),
    [
        pytest.param(*case, marks=[] if case in USUAL else pytest.mark.slow)
        for case in (
            (backend, kind, dtype)
            for dtype in DTYPES
            for backend, kinds in DRIVEN.items()
            for kind in kinds
        )
    ],
)
def test_no_bit_depends_on_drafts_batch_or_chunks(backend, kind, dtype):
    model = Model(zoo.twin(zoo.build(kind), DTYPES[dtype]), backend=backend)
    wrong, accepted, refused = differing(model)
    assert wrong == ()
    assert (accepted > 0) == (refused > 0) == (model.mode is not Mode.PLAIN)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bundled_draft_model_is_exact_through_the_cache(dtype):
    model = Model.load(starter.draft(), dtype=dtype, backend="cache")
    wrong, accepted, refused = differing(model)
    assert wrong == ()
    assert accepted > 0
    assert refused > 0


@pytest.mark.parametrize(
    ("kind", "dtype"), [("falcon_h1", "float32"), ("mamba", "bfloat16")]
)
def test_pool_is_refused_for_layers_with_a_state(kind, dtype):
    with pytest.warns(UserWarning, match="runs in mode"):
        model = Model(zoo.twin(zoo.build(kind), DTYPES[dtype]))
    assert model.mode in (Mode.CACHE, Mode.PLAIN)
    assert "keep a recurrent state" in dict(model.capability.refused)["pool"]


def test_an_algorithm_that_bfloat16_would_hide_is_found(monkeypatch):
    """Attention that forgets some of its scale is near in bfloat16, and wrong."""
    from transformers import AttentionInterface

    from foreword.model.executors.torch import attention

    def colder(*args, scaling=None, **kwargs):
        return attention.attend(
            *args, scaling=None if scaling is None else scaling * 0.99, **kwargs
        )

    monkeypatch.setitem(AttentionInterface._global_mapping, attention.NAME, colder)
    model = zoo.twin(zoo.build("phimoe"), torch.bfloat16)
    with pytest.warns(UserWarning, match="runs in mode"):
        capability = Model(model).capability
    assert capability.backend == "cache"
    assert "in float32" in dict(capability.refused)["pool"]
