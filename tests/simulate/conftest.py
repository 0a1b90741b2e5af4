"""`foreword` in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import Here


@pytest.fixture
def here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    unchecked: None,
) -> Here:
    return Here(tmp_path, monkeypatch, capsys)
