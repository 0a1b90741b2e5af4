"""Sums over ranks do not depend on the rows of a forward: with more than two ranks, and
over experts.
"""

from pathlib import Path

import pytest
import torch

from foreword import LLM, SamplingParams
from zoo import build

PROMPTS = [torch.randint(3, 320, (12,)).tolist() * 2 for _ in range(3)]


def same_text(folder: Path, ranks: int) -> None:
    with LLM(
        folder,
        method="ngram",
        tokenizer=False,
        dtype="float32",
        budget="heuristic",
        tensor_parallel=ranks,
    ) as llm:
        drafted, plain = (
            llm.generate(
                PROMPTS,
                SamplingParams(method=method, max_tokens=60, temperature=0.1, seed=3),
            )
            for method in ("ngram", "none")
        )
        params = SamplingParams(max_tokens=60, temperature=0.1, seed=3)
        alone = llm.generate([PROMPTS[1]], params)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert alone[0].tokens == plain[1].tokens
    assert sum(one.stats.accepted for one in drafted) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mixtral", "qwen3", "gemma2"])
def test_two_ranks(kind: str, tmp_path: Path):
    build(kind).save_pretrained(tmp_path)
    same_text(tmp_path, 2)


@pytest.mark.slow
def test_four_ranks(tmp_path: Path):
    config = build("llama").config
    config.num_key_value_heads = 4
    type(build("llama"))(config).save_pretrained(tmp_path)
    same_text(tmp_path, 4)
