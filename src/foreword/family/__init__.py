"""Where the two small models that ship with Foreword lie. Knows paths; knows nothing of what is in them.

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


def _folder(name: str) -> Path:
    folder = files("foreword.family") / name
    if not isinstance(folder, Path):
        raise ModelError("the family's weights lie inside an archive; install foreword as plain files (pip install)")
    return folder
