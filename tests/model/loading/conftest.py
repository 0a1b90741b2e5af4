"""A model whose files a test may change."""

from pathlib import Path

import pytest

import folders
import starter


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the small draft model."""
    return folders.copied(starter.draft(), tmp_path / "model")
