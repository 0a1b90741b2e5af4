"""OpenAI's own client against a server of speech: text, segments, errors."""

import asyncio
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import numpy as np
import openai
import pytest
from starlette.requests import Request

import tiny_whisper
from foreword import LLM, SamplingParams
from foreword.speech.audio import samples
from foreword.wanted import Abandoned, check_wanted
from foreword_server.leaving import while_connected
from serving import Running, running

FILE = tiny_whisper.SOUND


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("speech")
    tiny_whisper.saved(tiny_whisper.build("v2"), "v2", folder)
    with (
        LLM(folder, draft=folder, dtype="float32", nodes=4) as llm,
        running(llm, name="whisper") as one,
    ):
        yield one


@pytest.fixture(scope="module")
def audio(server: Running) -> Iterator[openai.resources.Audio]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0
    ) as client:
        yield client.audio


def segments(answer):
    return [(one.start, one.end, one.tokens) for one in answer.segments]


def test_text_and_segments_are_those_of_the_library(server, audio):
    greedy = SamplingParams(temperature=0, max_tokens=20, method="none")
    options = dict(model="whisper", file=FILE, language="en")
    options["extra_body"] = {"max_tokens": "20"}
    plain, timed = (
        server.service.llm.transcribe(FILE, greedy, language="en", timestamps=t)[0]
        for t in (False, True)
    )
    assert audio.transcriptions.create(**options).text == plain.text
    text = audio.transcriptions.create(**options, response_format="text")
    assert text == plain.text.strip() + "\n"
    options |= dict(response_format="verbose_json", prompt="")
    options["timestamp_granularities"] = ["segment"]
    found = audio.transcriptions.create(**options)
    assert (found.text, found.language) == (timed.text, "en")
    assert found.duration == timed.duration
    assert segments(found) == segments(timed)


def test_translations_and_seeds(server):
    sampled = SamplingParams(temperature=0.7, max_tokens=20, seed=4, method="none")
    fields = dict(model="whisper", temperature="0.7", max_tokens="20", seed="4")
    files = {"file": FILE.read_bytes()}
    found = server.http.post("/v1/audio/translations", data=fields, files=files)
    want = server.service.llm.transcribe(FILE, sampled, task="translate")[0]
    assert found.json()["text"] == want.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(file=("a.wav", FILE.read_bytes()[:5000])), "it holds 2478 of 29000"),
        (dict(file=("a.wav", b"no sound")), "Format not recognised"),
        (dict(response_format="srt"), "response_format must be one of json, text"),
        (dict(timestamp_granularities=["word"]), "cannot give times of words"),
        (dict(stream=True), "cannot stream a transcript"),
        (dict(language="klingon"), "has no language 'klingon'"),
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
    words = "the form has no sound. Send it as the field 'file'"
    assert words in found.json()["error"]["message"]


def form(*parts: tuple[str, str, bytes], boundary: str = "xx") -> dict[str, object]:
    """Return the body of a form, and its header, of (name, filename or "", content)."""
    lines = []
    for name, file, content in parts:
        more = f'; filename="{file}"' if file else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{more}'
        lines.append(f"{head}\r\n\r\n".encode() + content)
    body = b"\r\n".join([*lines, f"--{boundary}--\r\n".encode()])
    kind = f"multipart/form-data; boundary={boundary}"
    return dict(content=body, headers={"content-type": kind})


def sound(content: bytes, *more: tuple[str, str, bytes]) -> dict[str, object]:
    """Return the body of a form with a sound in it."""
    return form(("file", "a.wav", content), *more)


def wav(size: int, rate: int, bits: int, channels: int = 1) -> bytes:
    """Return a WAV file of so many bytes of silence."""
    header = (b"fmt ", 16, 1, channels, rate, 0, 0, bits, b"data", size)
    numbers = struct.pack("<4sIHHIIHH4sI", *header)
    return b"RIFF" + struct.pack("<I", size + 36) + b"WAVE" + numbers + bytes(size)


NESTED = sound(form(("file", "a.wav", FILE.read_bytes()), boundary="yy")["content"])
MANY = form(*[(f"field{number}", "", b"") for number in range(100_000)])
EMPTY = dict(content=b"", headers={"content-type": "multipart/form-data"})
CUT = dict(content=b"--xx\r\nno form", headers=NESTED["headers"])
FORMS = {
    "fields": (MANY, "Too many fields"),
    "files": (form(*[("file", "a.wav", b"")] * 1000), "Too many files"),
    "long field": (sound(b"", ("prompt", "", b"a" * 70_000)), "exceeded maximum size"),
    "two files": (sound(b"", ("prompt", "a.txt", b"a")), "Too many files"),
    "no file": (form(("prompt", "a.txt", b"a")), "the form has no sound"),
    "nested": (NESTED, "Format not recognised"),
    "bits": (sound(wav(100, 16_000, bits=65_535)), "it has 65536 bits a sample"),
    "channels": (sound(wav(100, 16_000, bits=16, channels=0)), "read these bytes"),
    "long": (sound(wav(2**21, 1000, bits=8)), "2097 seconds, and the limit is 1800"),
    "cut": (CUT, "cannot read the form"),
    "empty": (EMPTY, "Missing boundary"),
}


@pytest.mark.parametrize(("given", "said"), FORMS.values(), ids=FORMS)
def test_forms_and_sounds_that_are_none_are_refused(server, given, said):
    found = server.http.post("/v1/audio/transcriptions", **given)
    assert found.status_code == 400
    assert said in found.json()["error"]["message"]


def test_a_client_that_leaves_ends_its_transcription(server):
    llm, words = server.service.llm, samples(FILE, 16_000)
    words = (np.tile(words, 90) * 2**15).astype("<i2").tobytes()  # 80 windows
    body = sound(wav(len(words), 16_000, bits=16)[: -len(words)] + words)
    path, soon = "/v1/audio/transcriptions", httpx.Timeout(60, read=0.5)
    with running(llm, name="whisper", queue=1) as small:
        with pytest.raises(httpx.ReadTimeout):
            small.http.post(path, **body, timeout=soon)
        own = dict(files={"file": FILE.read_bytes()}, data={"max_tokens": "4"})
        while (found := small.http.post(path, **own)).status_code == 429:
            pass  # the place is free once the thread has ended
        assert found.status_code == 200
        left = 'clients_left_total{engine="0",model_name="whisper"} 1.0'
        assert left in small.http.get("/metrics").text
    assert not llm.session._running


def test_work_in_a_thread_ends_when_its_client_leaves():
    asyncio.run(leave())


async def leave() -> None:
    begun, loop = asyncio.Event(), asyncio.get_running_loop()

    async def receive():
        await begun.wait()
        return {"type": "http.disconnect"}

    def work():
        loop.call_soon_threadsafe(begun.set)
        while True:
            check_wanted()

    with ThreadPoolExecutor(1) as threads, pytest.raises(Abandoned):
        await while_connected(Request({"type": "http"}, receive), threads, work)
