"""Requests of a speech model: options, and errors that say what is wrong."""

import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import starter
import tiny_whisper
from folders import kept
from foreword import LLM, InvalidRequest, ModelError, SamplingParams
from foreword.draft.lm import LanguageModelDrafter
from foreword.model import Model

SOUND = (np.zeros(8000, np.float32), 16_000)
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@cache
def folder() -> Path:
    return tiny_whisper.saved(tiny_whisper.build("v2"), "v2", kept())


@cache
def llm() -> LLM:
    return LLM(folder(), dtype="float32")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder(), tmp_path / "model"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(language="klingon"), "has no language 'klingon'. Give one of af, am,"),
        (dict(task="sing"), "task must be one of transcribe, translate, got 'sing'"),
        (dict(no_speech_threshold=0.6), "no_speech_threshold needs logprob_threshold"),
        (dict(logprob_threshold=float("nan")), "logprob_threshold must be a number"),
        (dict(fallback=(-1.0,)), r"temperature must be in \[0, 100\]"),
        (dict(prompt="<|en|>"), r"prompt must be text, and holds '<\|en\|>'"),
        (dict(params=SamplingParams(logprobs=1)), "cannot transcribe with 'logprobs'"),
        (dict(params=SamplingParams(trace=True)), "cannot transcribe with 'trace'"),
        (dict(params=SamplingParams(method="tli")), "is an encoder-decoder. Use one"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(InvalidRequest, match=said):
        llm().transcribe(SOUND, options.pop("params", GREEDY), **options)


def test_text_and_sound_are_not_mistaken_for_each_other():
    with pytest.raises(InvalidRequest, match=r"a text: .* reads sound"):
        llm().generate("A text.", GREEDY)
    with pytest.raises(InvalidRequest, match="it reads no sound"):
        LLM(starter.target(), method="none").transcribe(SOUND)
    with pytest.raises(InvalidRequest, match="that reads 80 mel bins as draft model"):
        LanguageModelDrafter.load(tiny_whisper.build("v3"), llm().target, None)


@pytest.mark.slow
def test_defaults_are_greedy_and_fill_the_context():
    found = llm().transcribe(SOUND)[0]
    again = llm().transcribe([SOUND], SamplingParams(temperature=0, max_tokens=448))[0]
    assert found.tokens == again.tokens
    assert len(found.tokens) > 256 or found.finish_reason == "stop"


def test_of_a_long_prompt_the_end_is_read():
    found, same, other = (
        llm().transcribe(SOUND, GREEDY, prompt=text)[0].tokens
        for text in ("first " + "word " * 500, "word " * 60, "first " + "word " * 20)
    )
    assert found == same != other


def test_a_model_of_one_language_takes_none(copied):
    file = copied / "generation_config.json"
    settings = json.loads(file.read_text()) | dict(is_multilingual=False)
    for name in ("lang_to_id", "task_to_id"):
        del settings[name]
    file.write_text(json.dumps(settings))
    english = LLM(copied, dtype="float32")
    assert english.transcribe(SOUND, GREEDY)[0].language is None
    with pytest.raises(InvalidRequest, match=r"knows English only. Leave them out"):
        english.transcribe(SOUND, GREEDY, language="en")


def test_settings_that_a_request_needs_are_named(copied):
    file = copied / "generation_config.json"
    settings = json.loads(file.read_text())
    for missing in ("lang_to_id", "task_to_id", "no_timestamps_token_id"):
        del settings[missing]
    file.write_text(json.dumps(settings))
    lacking = LLM(copied, dtype="float32", method="none")
    for options, said in (
        (dict(language="en"), "cannot set 'language': .* lack lang_to_id"),
        (dict(task="translate"), "cannot set 'task': .* lack task_to_id"),
        (dict(timestamps=True), "cannot write timestamps: .* lack no_timestamps_token"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            lacking.transcribe(SOUND, GREEDY, **options)


@pytest.mark.slow
def test_a_missing_or_wrong_feature_extractor_is_named(copied):
    (copied / "processor_config.json").unlink()
    with pytest.raises(ModelError, match=r"a feature extractor .* Copy preprocessor"):
        LLM(copied, dtype="float32").transcribe(SOUND)
    tiny_whisper.extractor("v3").save_pretrained(copied)
    with pytest.raises(ModelError, match=r"gives 128 bins .*, and the model reads 80"):
        LLM(copied, dtype="float32").transcribe(SOUND)
    memory = LLM(
        Model(tiny_whisper.build("v2"), "v2"), tokenizer=tiny_whisper.tokenizer("v2")
    )
    with pytest.raises(
        ModelError, match=r"feature extractor is unknown. Save the model"
    ):
        memory.transcribe(SOUND)
