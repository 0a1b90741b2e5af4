"""The recipe of enlarged checkpoints: added layers leave the text as it was."""

import subprocess
import sys
from pathlib import Path

import pytest

from foreword import LLM, SamplingParams, bundled

SCRIPT = Path(__file__).parents[3] / "recipes" / "inflate.py"


@pytest.mark.slow
def test_enlarged_checkpoint_writes_the_same_text(tmp_path):
    subprocess.run(
        [sys.executable, SCRIPT, "llama-110m", tmp_path / "large"], check=True
    )
    models = [
        LLM(source, dtype="float32", method="none")
        for source in (bundled.target(), tmp_path / "large")
    ]
    small, large = (
        llm.generate(
            "The capital of France is", SamplingParams(temperature=0, max_tokens=24)
        )
        for llm in models
    )
    assert large[0].tokens == small[0].tokens
    assert models[1].target.parameters > 3 * models[0].target.parameters
