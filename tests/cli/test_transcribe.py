"""`foreword transcribe`: text, segments and JSON of sound files."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

import tiny_whisper
from folders import kept
from foreword import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=20)


@cache
def folder() -> Path:
    return tiny_whisper.saved(tiny_whisper.build("v2"), "v2", kept())


@pytest.mark.slow
def test_text_segments_and_json_are_those_of_the_library(here):
    file, model = str(tiny_whisper.SOUND), str(folder())
    options = "--max-tokens 20 --language en --dtype float32".split()
    options = ("--model", model, *options)
    llm = LLM(folder(), dtype="float32", method="none")
    plain, timed = (
        llm.transcribe(file, GREEDY, language="en", timestamps=one)[0]
        for one in (False, True)
    )
    plainly, drafting = ("--method", "none"), ("--draft", model, "--nodes", "4")
    text = here("transcribe", file, file, *options, *plainly)
    assert (text.returncode, text.stdout) == (0, 2 * (plain.text.strip() + "\n"))
    assert text.stderr.count("fox.wav · 1.3 s of sound in") == 2
    segments = here(
        "transcribe", file, *options, *plainly, "--timestamps", "--quiet"
    ).stdout.splitlines()
    assert [line.partition("] ")[2] for line in segments] == [
        one.text.strip() for one in timed.segments
    ]
    assert segments[0].startswith(f"[00:00:{timed.segments[0].start:05.2f} --> ")
    found = json.loads(
        here("transcribe", file, *options, *drafting, "--timestamps", "--json").stdout
    )
    assert found["tokens"] == timed.tokens
    assert found["file"] == file
    assert found["language"] == "en"
    assert found["stats"]["accepted"] > 0
    assert [one["tokens"] for one in found["segments"]] == [
        one.tokens for one in timed.segments
    ]


def test_help_names_no_default_model(here):
    found = " ".join(here("transcribe", "--help", COLUMNS="200").stdout.split())
    assert "Speech model, as openai/whisper-tiny: folder or hub id." in found
    assert "Default: bundled" not in found


def test_errors_name_what_is_wrong(here, tmp_path):
    broken = tmp_path / "broken.wav"
    broken.write_bytes(tiny_whisper.SOUND.read_bytes()[:5000])
    for words, said in [
        ((str(tiny_whisper.SOUND),), "the bundled model reads no sound. Give --model"),
        ((str(broken), "-m", str(folder())), "it holds 2478 of 29000 samples"),
        ((str(tmp_path / "none.wav"), "-m", str(folder())), "does not exist"),
        (
            (str(tiny_whisper.SOUND), "-m", str(folder()), "--language", "klingon"),
            "has no language 'klingon'",
        ),
    ]:
        found = here("transcribe", *words)
        assert (found.returncode, found.stdout) == (2, "")
        assert said in re.sub(r"[│\s]+", " ", found.stderr)  # typer draws a box
