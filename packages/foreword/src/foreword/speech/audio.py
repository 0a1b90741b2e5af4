"""Reads sound: files and arrays become one channel of float32 samples at the rate that
a model reads.
"""

import io
import wave
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from foreword.errors import InvalidRequest, words
from foreword.speech.options import Audio
from foreword.types.speech import LONGEST
from foreword.wanted import check_wanted

Samples = Float[np.ndarray, "_"]
"""One channel of samples, float32 within -1 and 1."""
RATES = 1_000, 1_000_000
"""Hz. Lowest and highest rate that sound may have."""
DENSEST = 48_000
"""Hz. Rate that the longest sound may have; a shorter one may have a higher rate."""
WIDTHS = (1, 2, 3, 4)
"""Bytes. Widths of whole numbers in WAV files."""
BLOCK = 2**20
"""Samples of all channels that are decoded at a time."""
LOUDEST = 2.0
"""Samples of floats are within -1 and 1; a larger one shows that they were never
divided by their range.
"""
INSTALL = "Run: pip install 'foreword[audio]'"


class _Bytes(io.BytesIO):
    """Bytes as a file, where a damaged header may seek to a negative place: soundfile
    would print the error.
    """

    def seek(self, offset: int, whence: int = 0, /) -> int:
        try:
            return super().seek(offset, whence)
        except ValueError:
            return self.tell()


def samples(audio: Audio, rate: int, longest: float = LONGEST) -> Samples:
    """Return the samples of a sound at `rate`.

    Raises InvalidRequest where it cannot be read, or is longer than `longest` seconds;
    a file's header tells that.
    """
    if isinstance(audio, str | Path):
        sound, given_rate = _from_path(Path(audio).expanduser(), longest)
    elif isinstance(audio, bytes):
        sound, given_rate = _from_file(_Bytes(audio), "these bytes", longest)
    else:
        sound, given_rate = _from_memory(audio)
        _check_length(len(sound), given_rate, longest)
    if not len(sound):
        raise InvalidRequest(
            "cannot transcribe this sound: it is empty. Give at least one sample"
        )
    check_wanted()
    return sound if given_rate == rate else _resampled(sound, given_rate, rate)


def _from_path(path: Path, longest: float) -> tuple[Samples, int]:
    try:
        with path.open("rb") as file:
            return _from_file(file, str(path), longest)
    except OSError as error:
        raise InvalidRequest(
            f"cannot read {path}: {error.strerror or error}. Give the path of a sound "
            "file"
        ) from error


def _from_file(
    file: io.BytesIO | io.BufferedReader, name: str, longest: float
) -> tuple[Samples, int]:
    opening = file.read(12)
    file.seek(0)
    if opening[:4] == b"RIFF" and opening[8:] == b"WAVE":
        try:
            return _pcm(wave.open(file), name, longest)
        except (wave.Error, RuntimeError):
            # compressed, or floats, or chunks in disorder: not for the standard library
            file.seek(0)
        except EOFError as error:
            raise _corrupt(name, "it ends within its header") from error
    return _other_format(file, name, longest)


def _pcm(reader: wave.Wave_read, name: str, longest: float) -> tuple[Samples, int]:
    width = reader.getsampwidth()
    channels = reader.getnchannels()
    frames = reader.getnframes()
    if width not in WIDTHS:
        raise _corrupt(name, f"it has {8 * width} bits a sample")
    rate = _checked_rate(reader.getframerate())
    _check_length(frames, rate, longest)
    data = reader.readframes(frames)
    if len(data) != frames * width * channels:
        raise _corrupt(
            name, f"it holds {len(data) // (width * channels)} of {frames} samples"
        )
    if width == 1:
        whole = np.frombuffer(data, np.uint8).astype(np.float32) / 128 - 1
    elif width == 3:  # as the upper bytes of 32 bits
        padded = np.zeros((len(data) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        whole = padded.view("<i4")[:, 0].astype(np.float32) / 2**31
    else:
        whole = np.frombuffer(data, f"<i{width}").astype(np.float32) / 2 ** (
            8 * width - 1
        )
    return whole.reshape(-1, channels).mean(1, dtype=np.float32), rate


def _other_format(
    file: io.BytesIO | io.BufferedReader, name: str, longest: float
) -> tuple[Samples, int]:
    try:
        import soundfile
    except ImportError as error:
        raise InvalidRequest(
            f"cannot read {name}: it is not a WAV file of whole numbers, and soundfile "
            f"is missing. {INSTALL}"
        ) from error
    try:
        with soundfile.SoundFile(file) as sound:
            rate = _checked_rate(sound.samplerate)
            _check_length(sound.frames, rate, longest)
            return _checked(_decoded(sound)), rate
    except (soundfile.SoundFileError, TypeError) as error:
        raise _corrupt(
            name, getattr(error, "error_string", words(error)).rstrip(" .")
        ) from error


def _decoded(sound: Any) -> Samples:
    """Return the mean of a file's channels, decoded block by block: a header may name a
    thousand channels.
    """
    buffer, done = np.empty(sound.frames, np.float32), 0
    while len(
        block := sound.read(
            max(1, BLOCK // sound.channels), dtype="float32", always_2d=True
        )
    ):
        check_wanted()
        # of infinite samples, which are refused later
        with np.errstate(invalid="ignore"):
            buffer[done : done + len(block)] = block.mean(1, dtype=np.float32)
        done += len(block)
    return buffer[:done]


def _check_length(frames: int, rate: int, longest: float) -> None:
    """Raise InvalidRequest for a sound that lasts too long, or has too many samples."""
    if frames > longest * rate:
        raise InvalidRequest(
            f"cannot transcribe this sound: it lasts {frames / rate:.0f} seconds, and "
            f"the limit is {longest:g}. Cut it into pieces"
        )
    if frames > longest * DENSEST:
        raise InvalidRequest(
            f"cannot transcribe this sound: it has {frames} samples, and the limit is "
            f"{longest * DENSEST:.0f}. Save it at {DENSEST} Hz"
        )


def _from_memory(audio: object) -> tuple[Samples, int]:
    if isinstance(audio, Mapping):
        audio = audio.get("array"), audio.get("sampling_rate")
    if not (isinstance(audio, tuple) and len(audio) == 2):
        raise InvalidRequest(
            f"cannot read a {type(audio).__name__} as sound: give a file, or (samples, "
            "rate in Hz), or a list of them"
        )
    data, rate = cast("tuple[Any, Any]", audio)
    if hasattr(data, "detach"):
        data = data.detach().cpu()
    try:
        array = np.asarray(data)
    except Exception as error:
        raise InvalidRequest(
            f"cannot read samples: {words(error)}. Give a 1-d array of floats"
        ) from error
    return _checked(array), _checked_rate(rate)


def _checked(array: Any) -> Samples:
    """Return samples as float32. InvalidRequest for another shape or range."""
    if array.ndim != 1:
        raise InvalidRequest(
            f"cannot transcribe samples of the shape {list(array.shape)}: give one "
            "channel, e.g. the mean of them"
        )
    if array.dtype.kind != "f":
        raise InvalidRequest(
            f"cannot transcribe samples of {array.dtype}: give floats within -1 and 1, "
            "e.g. int16 divided by 32768"
        )
    if not np.isfinite(array).all():
        raise InvalidRequest(
            "cannot transcribe these samples: they hold NaN or infinite numbers. "
            "Remove them"
        )
    if len(array) and np.abs(array).max() > LOUDEST:
        raise InvalidRequest(
            f"cannot transcribe these samples: the largest is {np.abs(array).max():g}. "
            "Divide them by their range, so that they are within -1 and 1"
        )
    return array.astype(np.float32)


def _checked_rate(rate: Any) -> int:
    low, high = RATES
    if (
        isinstance(rate, bool)
        or not isinstance(rate, Integral)
        or not low <= int(rate) <= high
    ):
        raise InvalidRequest(
            f"the rate of a sound must be a whole number of Hz in [{low}, {high}], got "
            f"{rate!r}"
        )
    return int(rate)


def _resampled(sound: Samples, in_rate: int, rate: int) -> Samples:
    try:
        import soxr
    except ImportError as error:
        raise InvalidRequest(
            f"cannot transcribe sound at {in_rate} Hz: this model reads {rate} Hz, and "
            f"soxr, which converts it, is missing. {INSTALL}"
        ) from error
    resampled = soxr.resample(sound, in_rate, rate)
    return resampled if len(resampled) else np.zeros(1, np.float32)


def _corrupt(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"cannot read {name}: {why}. Save the sound again, e.g. as WAV with 16 bits"
    )
