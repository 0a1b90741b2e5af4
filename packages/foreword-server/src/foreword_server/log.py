"""Server log: one line a request on stderr, text or JSON; prompts only on request."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

NAME = "foreword.server"


class Log:
    """Writer of structured lines through `logging`, logger "foreword.server"."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._logger = logging.getLogger(NAME)

    def request(
        self,
        request_id: str,
        method: str,
        path: str,
        status: int,
        seconds: float,
        fields: dict[str, Any],
    ) -> None:
        """Write the line of a request that ended."""
        level = logging.ERROR if status >= 500 else logging.INFO
        summary = {
            "method": method,
            "path": path,
            "status": status,
            "ms": round(1000 * seconds, 1),
        }
        self._write(level, "request", {"id": request_id, **summary, **fields})

    def event(self, name: str, **fields: Any) -> None:
        """Write the line of an event, such as the start of draining."""
        self._write(logging.INFO, name, fields)

    def warn(self, name: str, **fields: Any) -> None:
        """Write a warning."""
        self._write(logging.WARNING, name, fields)

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        if self._as_json:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = {
                "time": now,
                "level": logging.getLevelName(level).lower(),
                "event": event,
                **fields,
            }
            self._logger.log(
                level, "%s", json.dumps(line, ensure_ascii=False, default=str)
            )
        else:
            shown = " ".join(
                f"{name}={_plain(value)}" for name, value in fields.items()
            )
            self._logger.log(level, "%s %s", event, shown)


def _plain(value: object) -> str:
    """Return a value on one line, quoted where it holds spaces: a client must not be
    able to write lines.
    """
    text = str(value)
    return text if text.isprintable() and " " not in text and text else json.dumps(text)
