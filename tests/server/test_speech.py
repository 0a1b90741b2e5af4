"""OpenAI's own client against a server of speech: text, segments, errors."""

from collections.abc import Iterator

import openai
import pytest

import tiny_whisper
from foreword import LLM, SamplingParams
from serving import Running, running

FILE = tiny_whisper.SOUND


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tiny_whisper.saved(tiny_whisper.build("v2"), "v2", tmp_path_factory.mktemp("speech"))
    with LLM(folder, draft=folder, dtype="float32", nodes=4) as llm, running(llm, name="whisper") as one:
        yield one


@pytest.fixture(scope="module")
def audio(server: Running) -> Iterator[openai.resources.Audio]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client.audio


def test_text_and_segments_are_those_of_the_library(server, audio):
    greedy = SamplingParams(temperature=0, max_tokens=20, method="none")
    options = dict(model="whisper", file=FILE, language="en", extra_body={"max_tokens": "20"})
    plain, timed = (server.service.llm.transcribe(FILE, greedy, language="en", timestamps=t)[0] for t in (False, True))
    assert audio.transcriptions.create(**options).text == plain.text
    assert audio.transcriptions.create(**options, response_format="text") == plain.text.strip() + "\n"
    found = audio.transcriptions.create(
        **options, response_format="verbose_json", timestamp_granularities=["segment"], prompt=""
    )
    assert (found.text, found.language, found.duration) == (timed.text, "en", timed.duration)
    assert [(one.start, one.end, one.tokens) for one in found.segments] == [
        (one.start, one.end, one.tokens) for one in timed.segments
    ]


def test_translations_and_seeds(server):
    sampled = SamplingParams(temperature=0.7, max_tokens=20, seed=4, method="none")
    fields = dict(model="whisper", temperature="0.7", max_tokens="20", seed="4")
    found = server.http.post("/v1/audio/translations", data=fields, files={"file": FILE.read_bytes()}).json()
    assert found["text"] == server.service.llm.transcribe(FILE, sampled, task="translate")[0].text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(file=("a.wav", FILE.read_bytes()[:5000])), "it holds 2478 of 29000 samples"),
        (dict(file=("a.wav", b"no sound")), "Format not recognised"),
        (dict(response_format="srt"), "response_format must be one of json, text, verbose_json, got 'srt'"),
        (dict(timestamp_granularities=["word"]), "cannot give the times of words"),
        (dict(stream=True), "cannot stream a transcript"),
        (dict(language="klingon"), "there is no language 'klingon'"),
        (dict(extra_body={"seed": "x"}), "seed must be a number, got 'x'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_requests_are_refused_by_name(audio, options, said):
    with pytest.raises(openai.BadRequestError, match=said):
        audio.transcriptions.create(**(dict(model="whisper", file=FILE) | options))


def test_another_body_is_refused(server):
    found = server.http.post("/v1/audio/transcriptions", json={"file": "a"})
    assert found.status_code == 400
    assert "Send multipart/form-data" in found.json()["error"]["message"]
    found = server.http.post("/v1/audio/transcriptions", files={"other": b"a"})
    assert "there is no sound. Send it as the field 'file'" in found.json()["error"]["message"]
