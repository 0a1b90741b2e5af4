"""Knows the folder that all processes of a run of the tests share."""

from pathlib import Path
from tempfile import mkdtemp

common: list[Path] = []
"""The folder; conftest.py says which."""


def kept() -> Path:
    """Return a new folder for what this process makes once; it goes when the folders of
    pytest do.
    """
    return Path(mkdtemp(dir=common[0]))
