"""docs/models.md says of every kind of model what is found here."""

import re

import pytest
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

import zoo
from sweep import DTYPES, PAGE, find


def listed() -> dict[str, list[str]]:
    rows = re.findall(
        r"^\| (\S+) \| ([^|]*) \| ([^|]*) \|",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return {kind: list(cells) for kind, *cells in rows if kind != "kind"}


def test_every_kind_is_listed_and_none_differs():
    page = listed()
    assert set(page) == set(zoo.kinds())
    assert [kind for kind, cells in page.items() if "differs" in "".join(cells)] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "cells"), listed().items() if PAGE.exists() else [])
def test_no_bit_differs_on_the_backend_of_a_kind(kind, cells):
    """Which backend that is depends on the bits of this machine's arithmetic, so the
    page may name another one.
    """
    for dtype, cell in zip(DTYPES, cells, strict=True):
        if cell != "-":
            assert find(kind, dtype).differing == ()


def test_kind_registered_by_other_code_is_not_listed():
    class StrangeConfig(LlamaConfig):
        model_type = "stranger_still"

    class StrangeModel(LlamaForCausalLM):
        config_class = StrangeConfig

    AutoModelForCausalLM.register(StrangeConfig, StrangeModel)
    assert StrangeConfig in MODEL_FOR_CAUSAL_LM_MAPPING
    assert "stranger_still" not in zoo.kinds()
