"""Reads a server's API keys."""

import os
from pathlib import Path

from foreword.errors import InvalidRequest, words

KEYS = "FOREWORD_API_KEYS"
"""Environment variable with API keys, separated by commas."""


def api_keys(file: Path | None) -> list[str]:
    """Return the keys of file and environment. InvalidRequest for an empty file."""
    keys = [key.strip() for key in os.environ.get(KEYS, "").split(",") if key.strip()]
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = (
                "it is not UTF-8"
                if isinstance(error, UnicodeDecodeError)
                else words(error)
            )
            raise InvalidRequest(
                f"cannot read keys from {file}: {reason}. Give a text file, one key a "
                "line"
            ) from error
        lines = (line.strip() for line in text.splitlines())
        entries = [line for line in lines if line and not line.startswith("#")]
        if not entries:
            raise InvalidRequest(
                f"cannot read keys from {file}: it is empty. Write one key a line"
            )
        keys += entries
    return keys
