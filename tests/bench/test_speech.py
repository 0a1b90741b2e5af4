"""`foreword bench speech`: every row transcribes every sound, and our texts equal
plain decoding's.
"""

import wave
from importlib.util import find_spec
from pathlib import Path
from shutil import copy

import pytest
from rich.console import Console

import starter
import tiny_whisper
from foreword.bench.peers.transcribers import Trial
from foreword.bench.run import Options
from foreword.bench.speech import SpeechReport, transcribing
from foreword.errors import InvalidRequest

TOKENS = 10


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_whisper.saved(
        tiny_whisper.build("v2"), "v2", tmp_path_factory.mktemp("model")
    )


@pytest.fixture(scope="module")
def sounds(tmp_path_factory) -> Path:
    """The words, and the words twice, which is longer than a window, beside a file that
    is no sound.
    """
    folder = tmp_path_factory.mktemp("sounds")
    copy(tiny_whisper.SOUND, folder / "words.WAV")
    with (
        wave.open(str(tiny_whisper.SOUND)) as words,
        wave.open(str(folder / "long.wav"), "wb") as longer,
    ):
        longer.setparams(words.getparams())
        longer.writeframes(words.readframes(words.getnframes()) * 2)
    (folder / "notes.txt").write_text("words")
    return folder


def options(model: Path, **more) -> Options:
    return Options(
        target=str(model), dtype="float32", **(dict(temperatures=(0.0,)) | more)
    )


@pytest.fixture(scope="module")
def report(model, sounds) -> SpeechReport:
    """Drafts by the target itself, under a budget that does not depend on the clock."""
    given = options(
        model, draft=str(model), temperatures=(0.0, 1.0), budget="heuristic"
    )
    return transcribing(given, sounds, TOKENS)


def test_every_row_transcribes_at_every_temperature(report):
    rows = "none ngram suffix lm transformers.generate transformers.assisted".split()
    assert [(row.temperature, row.name) for row in report.rows] == [
        (heat, name) for heat in (0, 1) for name in rows
    ]
    assert report.exclusions == {}
    assert list(report.sounds) == ["long.wav", "words.WAV"]
    assert report.sounds["long.wav"] == pytest.approx(
        2 * report.sounds["words.WAV"], abs=0.001
    )
    assert all(row.real_time_factor > 0 and row.over_plain > 0 for row in report.rows)
    assert [row.over_plain for row in report.rows if row.name == "none"] == [1, 1]


def test_drafts_change_no_text(report):
    same = {(row.name, row.temperature): row.same_text for row in report.rows}
    assert [
        same[name, heat]
        for heat in (0, 1)
        for name in ("none", "ngram", "suffix", "lm")
    ] == [True] * 8
    assert same["transformers.generate", 0] is True
    assert same["transformers.generate", 1] is same["transformers.assisted", 1] is None


def test_acceptance_and_passes_are_counted(report):
    rows = {(row.name, row.temperature): row for row in report.rows}
    for heat in (0, 1):
        assert rows["lm", heat].acceptance > 0.3
        assert rows["lm", heat].tokens_per_pass > 3
        assert (rows["none", heat].acceptance, rows["none", heat].tokens_per_pass) == (
            None,
            1,
        )
    assert rows["transformers.generate", 0].tokens_per_pass == 1
    assert rows["transformers.generate", 0].acceptance is None


def test_trials_are_compared_by_tokens_or_text():
    plain = Trial("words", (1, 2), 1.0)
    assert Trial("words", (1, 2), 2.0).same(plain)
    assert not Trial("words", (1, 3), 1.0).same(plain)
    assert Trial(" words", None, 1.0).same(plain)
    assert not Trial("word", None, 1.0).same(plain)


def test_failing_row_is_left_out_with_its_reason(model, sounds):
    peers = () if find_spec("faster_whisper") else ("faster-whisper",)
    found = transcribing(options(model, methods=("medusa",), peers=peers), sounds, 1)
    assert [row.name for row in found.rows] == ["none", "transformers.generate"]
    assert set(found.exclusions) == {"medusa", *peers}
    console = Console(width=160)
    with console.capture() as shown:
        console.print(found.table())
    assert "left out: medusa (" in shown.get()
    if peers:
        assert (
            "it is not installed. Run: pip install faster-whisper"
            in found.exclusions["faster-whisper"]
        )


def test_bad_options_are_refused_before_loading(tmp_path):
    somewhere = options(tmp_path)
    for folder, message in (
        (tmp_path / "none", "no such folder exists"),
        (tmp_path, "it is empty"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            transcribing(somewhere, folder)
    (tmp_path / "notes.txt").write_text("words")
    with pytest.raises(InvalidRequest, match=r"none of its 1 files is \.wav or \.flac"):
        transcribing(somewhere, tmp_path)
    with pytest.raises(InvalidRequest, match="Give --model"):
        transcribing(Options(), tmp_path)
    with pytest.raises(InvalidRequest, match="'openvino': it transcribes no sound"):
        transcribing(options(tmp_path, peers=("openvino",)), tmp_path)


def test_text_model_is_refused(sounds):
    with pytest.raises(InvalidRequest, match="it reads no sound"):
        transcribing(options(starter.target()), sounds)
