"""Paths of the bundled models and heads, which the package foreword-models brings.

CARD.md beside them describes and measures them; ATTRIBUTION.md names their training
data.
"""

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from foreword.errors import InvalidRequest, ModelError

PACKAGE = "foreword_models"


def target() -> Path:
    """Return the folder of the target: a Llama of 26.2M parameters in bf16, with
    tokenizer and chat template.

    Raises InvalidRequest without the package of the models, and ModelError when it lies
    inside an archive.
    """
    return _folder("target")


def is_target(source: str | Path) -> bool:
    """Return whether a model is the bundled target."""
    return find_spec(PACKAGE) is not None and Path(source) == target()


def draft() -> Path:
    """Return the folder of the draft: a Llama of 4.7M parameters in bf16 with the
    target's tokenizer.

    Raises as `target` does.
    """
    return _folder("draft")


def head(method: str) -> Path | None:
    """Return the folder of a method's head, or None. Raises as `target` does."""
    folder = _folder("heads") / method
    return folder if (folder / "config.json").is_file() else None


def _folder(name: str) -> Path:
    if find_spec(PACKAGE) is None:
        raise InvalidRequest(
            "cannot use the bundled models: they are not installed. Name a model, or "
            "run: pip install 'foreword[models]'"
        )
    folder = files(PACKAGE) / name
    if not isinstance(folder, Path):
        raise ModelError(
            "cannot read the bundled models: they lie inside an archive. Install "
            "foreword-models as plain files (pip install)"
        )
    return folder
