"""Published Whisper models write what transformers writes, with drafts and without."""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers as hf
from recipes.whisper import converted

from foreword import LLM, SamplingParams
from foreword.speech.audio import samples

pytestmark = pytest.mark.real

RATE = 16_000
SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "My sister lives in a small house near the river.",
    "The train to the city leaves at seven in the morning.",
)
"""They leave both models no near-tie, which a rounding in bfloat16 would decide."""
WARM = SamplingParams(temperature=0.8, max_tokens=40, seed=3)


@pytest.fixture(scope="module", params=["whisper-tiny.en", "whisper-base"])
def folder(request, model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("whisper") / request.param
    return converted(model(request.param), path)


@pytest.fixture(scope="module")
def sounds(tmp_path_factory) -> list[np.ndarray]:
    if shutil.which("espeak-ng") is None:
        pytest.skip("no program here reads sentences aloud: install espeak-ng")
    path, found = tmp_path_factory.mktemp("sounds") / "sentence.wav", []
    for sentence in SENTENCES:
        subprocess.run(["espeak-ng", "-s", "140", "-w", path, sentence], check=True)
        found.append(samples(path, RATE))
    return found


@pytest.fixture(scope="module")
def written(folder, sounds) -> list[list[int]]:
    """What transformers writes greedily in float32."""
    theirs = hf.WhisperForConditionalGeneration.from_pretrained(folder)
    extractor = hf.WhisperFeatureExtractor.from_pretrained(folder)
    features = extractor(sounds, sampling_rate=RATE, return_tensors="pt").input_features
    texts = [theirs.generate(row[None], do_sample=False)[0] for row in features]
    return [text.tolist() for text in texts]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def llm(request, folder) -> Iterator[LLM]:
    with LLM(folder, draft=folder, dtype=request.param, nodes=4) as llm:
        assert (llm.target.capability.backend == "native") == (
            request.param != "float32"
        )
        yield llm


def test_transcripts_are_those_of_transformers(llm, sounds, written):
    together = llm.transcribe([(sound, RATE) for sound in sounds])
    assert [one.tokens for one in together] == written
    assert together[1].text.strip().lower() == SENTENCES[1].lower()
    assert sum(one.stats.accepted for one in together) > 20


def test_drafts_change_no_token_of_a_transcript(llm, sounds):
    twice = (np.concatenate([*sounds[:2]]), RATE)
    (plain,), (drafted,) = (
        llm.transcribe(twice, replace(WARM, method=method), timestamps=True)
        for method in ("none", "lm")
    )
    assert (drafted.tokens, drafted.segments) == (plain.tokens, plain.segments)
    assert drafted.stats.accepted > 5
