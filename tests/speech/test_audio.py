"""Sound from files and arrays: one channel at the model's rate, or an error."""

import io
import struct
import sys
import wave
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
import soundfile

import tiny_whisper
from foreword import InvalidRequest
from foreword.speech.audio import BLOCK, samples

RATE = 16_000


def tone(rate: int, seconds: float = 0.5) -> np.ndarray:
    return (
        0.5 * np.sin(2 * np.pi * 440 * np.arange(int(rate * seconds)) / rate)
    ).astype(np.float32)


def written(
    path: Path, sound: np.ndarray, width: int, rate: int = RATE, channels: int = 1
) -> Path:
    """Return the path of a WAV file of whole numbers of `width` bytes."""
    if width == 1:
        data = np.round(sound * 128 + 128).clip(0, 255).astype(np.uint8).tobytes()
    else:
        whole = np.round(sound.astype(np.float64) * 2 ** (8 * width - 1)).astype("<i4")
        data = whole.view(np.uint8).reshape(-1, 4)[:, :width].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return path


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_whole_numbers_of_every_width_are_read(tmp_path, width):
    sound = tone(RATE)
    found = samples(written(tmp_path / "a.wav", sound, width), RATE)
    assert found.dtype == np.float32
    assert np.abs(found - sound).max() <= 2.0 ** (1 - 8 * width) + 1e-6
    assert np.array_equal(found, soundfile.read(tmp_path / "a.wav", dtype="float32")[0])


def test_channels_are_averaged(tmp_path):
    left, right = tone(RATE), np.zeros(RATE // 2, np.float32)
    path = written(
        tmp_path / "a.wav", np.stack([left, right], 1).reshape(-1), 2, channels=2
    )
    assert np.abs(samples(path, RATE) - left / 2).max() < 1e-4


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_another_rate_is_converted(tmp_path, rate):
    found = samples(written(tmp_path / "a.wav", tone(rate), 2, rate), RATE)
    assert len(found) == RATE // 2
    assert np.abs(found - tone(RATE))[800:-800].max() < 1e-3
    assert np.array_equal(
        found, samples((samples(tmp_path / "a.wav", rate), rate), RATE)
    )


@pytest.mark.parametrize(
    ("ending", "subtype"),
    [("wav", "FLOAT"), ("wav", "ULAW"), ("flac", "PCM_16"), ("ogg", "VORBIS")],
)
def test_other_formats_are_read(tmp_path, ending, subtype):
    path = tmp_path / f"a.{ending}"
    soundfile.write(path, tone(RATE), RATE, subtype=subtype)
    assert np.abs(samples(path, RATE) - tone(RATE))[200:-200].max() < 0.05


def test_other_arrays_and_tables_with_a_rate_are_read():
    import torch

    sound = tone(RATE)
    for given in (
        (sound, RATE),
        (sound.astype(np.float64), RATE),
        (torch.from_numpy(sound), RATE),
        (sound.tolist(), RATE),
        {"array": sound, "sampling_rate": RATE},
        (sound, np.int64(RATE)),
    ):
        found = samples(given, RATE)
        assert found.dtype == np.float32
        assert np.array_equal(found, sound)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((np.zeros(0, np.float32), RATE), "it is empty"),
        ((np.zeros((2, 100), np.float32), RATE), r"\[2, 100\]: give one channel"),
        ((np.zeros(100, np.int16), RATE), "samples of int16: give floats"),
        ((np.array([0.0, np.nan]), RATE), "NaN or infinite"),
        ((np.array([0.0, 9000.0]), RATE), "the largest is 9000. Divide them"),
        ((np.zeros(100), 0), "a whole number of Hz in .*, got 0"),
        ((np.zeros(100), 16_000.5), "got 16000.5"),
        ((np.zeros(100), True), "got True"),
        ((["a"], RATE), "samples of <U1"),
        (({"array": np.zeros(100)}), "got None"),
        ("missing.wav", "cannot read missing.wav: No such file"),
        (Path(), r"cannot read \.: Is a directory"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_what_is_no_sound_is_refused(given, said):
    with pytest.raises(InvalidRequest, match=said):
        samples(given, RATE)


def test_damaged_files_are_refused(tmp_path):
    whole = tiny_whisper.SOUND.read_bytes()
    for name, content, said in [
        ("cut.wav", whole[:9000], "it holds 4478 of 29000 samples"),
        ("header.wav", whole[:30], "it ends within its header"),
        ("text.wav", b"not a sound at all", "Format not recognised"),
        ("empty.wav", b"", "Format not recognised"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(
            InvalidRequest, match=f"{name}: {said}.*Save the sound again"
        ):
            samples(tmp_path / name, RATE)
    with pytest.raises(InvalidRequest, match="it is empty"):
        samples(written(tmp_path / "none.wav", np.zeros(0), 2), RATE)


def header(frames: int, rate: int = RATE, bits: int = 16, channels: int = 1) -> bytes:
    """Return a WAV file of whole numbers that ends after its header."""
    size = frames * channels * ((bits + 7) // 8)
    return (
        b"RIFF"
        + struct.pack("<I", size + 36)
        + b"WAVE"
        + struct.pack(
            "<4sIHHIIHH4sI", b"fmt ", 16, 1, channels, rate, 0, 0, bits, b"data", size
        )
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            header(15_000_000, rate=1000, bits=8),
            "it lasts 15000 seconds, and the limit",
        ),
        (header(2**31 - 99, rate=1_000_000, bits=8), "it lasts 2147 seconds"),
        (
            header(90_000_000, rate=96_000, bits=8),
            "it has 90000000 samples, and the limit",
        ),
        ((np.zeros(1801 * 1000, np.float32), 1000), "it lasts 1801 seconds"),
    ],
    ids=["1000 Hz", "1 MHz", "dense", "array"],
)
def test_length_is_bounded_before_a_sound_is_decoded(given, said):
    with pytest.raises(InvalidRequest, match=f"cannot transcribe this sound: {said}"):
        samples(given, RATE, longest=1800.0)


def test_length_of_other_formats_is_bounded_too(tmp_path):
    soundfile.write(tmp_path / "a.flac", np.zeros(20_000, np.float32), 1000)
    assert len(samples(tmp_path / "a.flac", RATE, longest=20.0)) == 20 * RATE
    with pytest.raises(InvalidRequest, match="lasts 20 seconds, and the limit is 19"):
        samples(tmp_path / "a.flac", RATE, longest=19.9)
    content = bytearray((tmp_path / "a.flac").read_bytes())
    content[21:26] = b"\xff\xff\xff\xff\xff"  # the number of frames
    with pytest.raises(InvalidRequest, match="it lasts 68719477 seconds"):
        samples(bytes(content), RATE)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (dict(bits=65_535), "it has 65536 bits a sample"),
        (dict(bits=40), "it has 40 bits a sample"),
        (dict(bits=0), "cannot read these bytes"),
        (dict(channels=0), "cannot read these bytes"),
        (dict(channels=65_535), "it holds 0 of 100 samples"),
        (dict(rate=0), "the rate of a sound must be"),
        (dict(rate=2**32 - 1), "the rate of a sound must be"),
    ],
    ids=str,
)
def test_headers_of_no_sound_are_refused(wrong, said):
    with pytest.raises(InvalidRequest, match=said):
        samples(header(100, **wrong), RATE)


def test_damaged_headers_are_refused_and_nothing_else_is_raised(capfd):
    random = Random(0)
    whole = header(100) + bytes(200)
    out = io.BytesIO()
    soundfile.write(out, tone(RATE, 0.02), RATE, format="WAV", subtype="FLOAT")
    for content in (whole, out.getvalue()):
        for _ in range(300):
            damaged = bytearray(content)
            for _ in range(random.randint(1, 4)):
                damaged[random.randrange(48)] = random.choice((0, 1, 127, 128, 255))
            with suppress(InvalidRequest):
                samples(bytes(damaged), RATE, longest=1800.0)
    assert "Traceback" not in capfd.readouterr().err


def test_blocks_of_a_file_are_decoded_as_the_whole(tmp_path):
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, (150_000, 8)).astype(np.float32)
    soundfile.write(tmp_path / "a.flac", noise, RATE)
    whole = soundfile.read(tmp_path / "a.flac", dtype="float32")[0]
    assert whole.size > BLOCK
    assert np.array_equal(
        samples(tmp_path / "a.flac", RATE), whole.mean(1, dtype=np.float32)
    )


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    for package in ("soxr", "soundfile"):
        monkeypatch.setitem(sys.modules, package, None)
    soundless = tmp_path / "a.flac"
    soundless.write_bytes(b"fLaC")
    with pytest.raises(InvalidRequest, match=r"Run: pip install 'foreword\[audio\]'"):
        samples(soundless, RATE)
    with pytest.raises(InvalidRequest, match=r"22050 Hz: .* reads 16000 Hz, and soxr"):
        samples(tiny_whisper.SOUND, RATE)
    assert len(samples(written(tmp_path / "a.wav", tone(RATE), 2), RATE)) == RATE // 2
