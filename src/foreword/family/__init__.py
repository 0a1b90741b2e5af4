"""Where the small models that ship with Foreword lie, and the heads. Knows paths; knows nothing of what is in them.

CARD.md beside this file says what they are and how good, ATTRIBUTION.md what they were trained on.
"""

from importlib.resources import files
from pathlib import Path

from foreword.errors import ModelError


def target() -> Path:
    """Folder of the target: a Llama of 26.2M parameters in bf16, with tokenizer and chat template.

    Raises ModelError when the package lies inside an archive.
    """
    return _folder("target")


def draft() -> Path:
    """Folder of the draft: a Llama of 4.7M parameters in bf16 with the target's tokenizer.

    Raises ModelError when the package lies inside an archive.
    """
    return _folder("draft")


def head(method: str) -> Path | None:
    """Folder of the head of the target that this method guesses with; None where none ships.

    Raises ModelError when the package lies inside an archive.
    """
    folder = _folder("heads") / method
    return folder if (folder / "config.json").is_file() else None


def _folder(name: str) -> Path:
    folder = files("foreword.family") / name
    if not isinstance(folder, Path):
        raise ModelError("the family's weights lie inside an archive; install foreword as plain files (pip install)")
    return folder
