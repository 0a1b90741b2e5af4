"""Training log as JSON lines, cut back to the last checkpoint when a run resumes."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from foreword.files import room, sync


@dataclass(slots=True)
class Row:
    """One step of the log, without times: equal trainings write equal rows."""

    step: int
    """0: before the first step."""
    loss: float | None = None
    """Mean over the learnt tokens of the step."""
    learning_rate: float | None = None
    gradient: float | None = None
    """Norm before clipping."""
    tokens: int = 0
    """Learnt tokens of the step."""
    held_out: dict[str, float] = field(default_factory=dict)
    """Metrics on held-out data, where they were measured after this step."""


class Log:
    """Rows in memory and in a file, where this process is the one that writes it."""

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self.rows: list[Row] = []

    def begin(self, done: int) -> None:
        """Keep the file's rows of the first `done` steps (-1: none), drop the rest."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if done >= 0 else []
        self.rows = []
        for line in lines:
            try:
                row = Row(**json.loads(line))
            except json.JSONDecodeError:  # the line that was being written
                break
            if row.step > done:
                break
            self.rows.append(row)
        if not self.writes:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(map(_line, self.rows)), encoding="utf-8")
        partial.replace(self.path)

    def add(self, row: Row) -> None:
        """Append a row."""
        self.rows.append(row)
        if self.writes:
            with room(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(_line(row))

    def sync(self) -> None:
        """Flush the rows to the disk."""
        sync(self.path)


def _line(row: Row) -> str:
    return json.dumps(asdict(row)) + "\n"
