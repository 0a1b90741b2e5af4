"""Published models, from the package index."""

import os
from pathlib import Path

import pytest
from recipes import published

from foreword import files


def fetched(name: str) -> Path:
    """Return a model's file, downloaded once; skip the test where no index has it."""
    folder = os.environ.get("FOREWORD_PUBLISHED") or files.cache() / "published"
    try:
        return published.fetch(name, Path(folder))
    except published.Unavailable as error:
        pytest.skip(str(error))
