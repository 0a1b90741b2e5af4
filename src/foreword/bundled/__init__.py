"""Paths of the bundled models and heads.

CARD.md beside this file describes and measures them; ATTRIBUTION.md names their
training data.
"""

from importlib.resources import files
from pathlib import Path

from foreword.errors import ModelError


def target() -> Path:
    """Return the folder of the target: a Llama of 26.2M parameters in bf16, with
    tokenizer and chat template.

    Raises ModelError when the package lies inside an archive.
    """
    return _folder("target")


def draft() -> Path:
    """Return the folder of the draft: a Llama of 4.7M parameters in bf16 with the
    target's tokenizer.

    Raises ModelError when the package lies inside an archive.
    """
    return _folder("draft")


def head(method: str) -> Path | None:
    """Return the folder of the target's head for this method; None where none is
    bundled.

    Raises ModelError when the package lies inside an archive.
    """
    folder = _folder("heads") / method
    return folder if (folder / "config.json").is_file() else None


def _folder(name: str) -> Path:
    folder = files("foreword.bundled") / name
    if not isinstance(folder, Path):
        raise ModelError(
            "cannot read the bundled models: they lie inside an archive. Install "
            "foreword as plain files (pip install)"
        )
    return folder
