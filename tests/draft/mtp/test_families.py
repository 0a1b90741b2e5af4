"""Multi-token-prediction layers load from the checkpoints of every family, as they are
published, and draft without changing the text.
"""

from dataclasses import replace

import pytest
import torch

from foreword import LLM, SamplingParams
from foreword.draft.mtp.mtp_checkpoint import available
from mtp_families import FAMILIES, LAYERS, VOCAB, write

PROMPTS = tuple(
    torch.randint(
        0, VOCAB, (length,), generator=torch.Generator().manual_seed(length)
    ).tolist()
    for length in (3, 11, 40)
)
SETTINGS = (
    SamplingParams(temperature=0, max_tokens=24),
    SamplingParams(temperature=1.0, seed=5, max_tokens=24),
)


SLOW = ("qwen3.5-moe", "mellum")
"""Of a layout that another family has too."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name in FAMILIES
    ],
)
def test_published_layers_draft_and_change_no_text(name, tmp_path):
    family = FAMILIES[name]
    folder = write(family, tmp_path)
    assert available(folder, LAYERS)
    llm = LLM(folder, method="mtp", tokenizer=False, dtype=family.dtype, nodes=4)
    for params in SETTINGS:
        plain = llm.generate(list(PROMPTS), replace(params, method="none"))
        found = llm.generate(list(PROMPTS), params)
        assert [one.tokens for one in found] == [one.tokens for one in plain]
        assert sum(one.stats.accepted for one in found) > 0


def test_several_layers_draft_one_token_each(tmp_path):
    folder = write(FAMILIES["mimo"], tmp_path)
    llm = LLM(folder, method="mtp", tokenizer=False, dtype="float32", nodes=8)
    params = SamplingParams(temperature=0, max_tokens=24)
    (answer,) = llm.generate([PROMPTS[1]], params)
    assert answer.stats.accepted > 0
    assert 1 < len(answer.stats.accepted_at) <= FAMILIES["mimo"].count
