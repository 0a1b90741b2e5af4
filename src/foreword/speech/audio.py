"""Reads sound: files and arrays become one channel of float32 samples at the rate that a model reads."""

from __future__ import annotations

import io
import wave
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, SupportsInt, cast

import numpy as np
from jaxtyping import Float

from foreword.errors import InvalidRequest, words

Samples = Float[np.ndarray, "_"]
"""One channel of samples, float32 within -1 and 1."""
Audio = str | Path | bytes | tuple[Any, SupportsInt] | Mapping[str, Any]
"""A file or its bytes, samples with their rate in Hz, or both as {"array": …, "sampling_rate": …}."""
RATES = 1_000, 1_000_000
"""Hz. Lowest and highest rate that sound may have."""
LOUDEST = 2.0
"""Samples of floats are within -1 and 1; a larger one shows that they were never divided by their range."""
INSTALL = "Run: pip install 'foreword[audio]'"


def samples(audio: Audio, rate: int) -> Samples:
    """Return the samples of a sound at `rate`. Raises InvalidRequest where it cannot be read."""
    if isinstance(audio, str | Path):
        found, own = _from_path(Path(audio).expanduser())
    elif isinstance(audio, bytes):
        found, own = _from_file(io.BytesIO(audio), "these bytes")
    else:
        found, own = _from_memory(audio)
    if not len(found):
        raise InvalidRequest("cannot transcribe this sound: it is empty. Give at least one sample")
    return found if own == rate else _resampled(found, own, rate)


def _from_path(path: Path) -> tuple[Samples, int]:
    try:
        with path.open("rb") as file:
            return _from_file(file, str(path))
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}. Give the path of a sound file") from error


def _from_file(file: io.BytesIO | io.BufferedReader, name: str) -> tuple[Samples, int]:
    opening = file.read(12)
    file.seek(0)
    if opening[:4] == b"RIFF" and opening[8:] == b"WAVE":
        try:
            return _pcm(wave.open(file), name)
        except wave.Error:
            file.seek(0)  # compressed, or floats: not for the standard library
        except EOFError as error:
            raise _corrupt(name, "it ends within its header") from error
    return _other_format(file, name)


def _pcm(reader: wave.Wave_read, name: str) -> tuple[Samples, int]:
    width, channels, frames = reader.getsampwidth(), reader.getnchannels(), reader.getnframes()
    data = reader.readframes(frames)
    if len(data) != frames * width * channels:
        raise _corrupt(name, f"it holds {len(data) // (width * channels)} of {frames} samples")
    if width == 1:
        whole = np.frombuffer(data, np.uint8).astype(np.float32) / 128 - 1
    elif width == 3:  # as the upper bytes of 32 bits
        padded = np.zeros((len(data) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        whole = padded.view("<i4")[:, 0].astype(np.float32) / 2**31
    else:
        whole = np.frombuffer(data, f"<i{width}").astype(np.float32) / 2 ** (8 * width - 1)
    return whole.reshape(-1, channels).mean(1, dtype=np.float32), _checked_rate(reader.getframerate())


def _other_format(file: io.BytesIO | io.BufferedReader, name: str) -> tuple[Samples, int]:
    try:
        import soundfile
    except ImportError as error:
        raise InvalidRequest(
            f"cannot read {name}: it is no WAV file of whole numbers, and soundfile is missing. {INSTALL}"
        ) from error
    try:
        data, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, TypeError) as error:
        raise _corrupt(name, getattr(error, "error_string", words(error)).rstrip(" .")) from error
    return _checked(data.mean(1, dtype=np.float32)), _checked_rate(rate)


def _from_memory(audio: object) -> tuple[Samples, int]:
    if isinstance(audio, Mapping):
        audio = audio.get("array"), audio.get("sampling_rate")
    if not (isinstance(audio, tuple) and len(audio) == 2):
        raise InvalidRequest(
            f"cannot read a {type(audio).__name__} as sound: give a file, or (samples, rate in Hz), or a list of them"
        )
    data, rate = cast("tuple[Any, Any]", audio)
    if hasattr(data, "detach"):
        data = data.detach().cpu()
    try:
        found = np.asarray(data)
    except Exception as error:
        raise InvalidRequest(f"cannot read samples: {words(error)}. Give a 1-d array of floats") from error
    return _checked(found), _checked_rate(rate)


def _checked(found: Any) -> Samples:
    """Return samples as float32. Raises InvalidRequest for another shape, other numbers, or values out of range."""
    if found.ndim != 1:
        raise InvalidRequest(
            f"cannot transcribe samples of the shape {list(found.shape)}: give one channel, e.g. the mean of them"
        )
    if found.dtype.kind != "f":
        raise InvalidRequest(
            f"cannot transcribe samples of {found.dtype}: give floats within -1 and 1, e.g. int16 divided by 32768"
        )
    if not np.isfinite(found).all():
        raise InvalidRequest("cannot transcribe these samples: they hold NaN or infinite numbers. Remove them")
    if len(found) and np.abs(found).max() > LOUDEST:
        raise InvalidRequest(
            f"cannot transcribe these samples: the largest is {np.abs(found).max():g}. Divide them by their range, so "
            "that they are within -1 and 1"
        )
    return found.astype(np.float32)


def _checked_rate(rate: Any) -> int:
    low, high = RATES
    if isinstance(rate, bool) or not isinstance(rate, Integral) or not low <= int(rate) <= high:
        raise InvalidRequest(f"the rate of a sound must be a whole number of Hz in [{low}, {high}], got {rate!r}")
    return int(rate)


def _resampled(found: Samples, own: int, rate: int) -> Samples:
    try:
        import soxr
    except ImportError as error:
        raise InvalidRequest(
            f"cannot transcribe sound at {own} Hz: this model reads {rate} Hz, and soxr, which converts it, is "
            f"missing. {INSTALL}"
        ) from error
    resampled = soxr.resample(found, own, rate)
    return resampled if len(resampled) else np.zeros(1, np.float32)


def _corrupt(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"cannot read {name}: {why}. Save the sound again, e.g. as WAV with 16 bits")
