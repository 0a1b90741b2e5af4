"""Which files a round of decoding and a chat request really run: those that a reader has to open.

    python tests/rules/measured.py    prints JSON; takes seconds

One text-only round: method "lm", rule "match", the adaptive budget, the bundled models on a CPU. The chat request goes
over HTTP, its rounds included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from sources import PACKAGES, ROOT, code, lines

if TYPE_CHECKING:
    from foreword import LLM

ANSWERS = 8
"""The one with the fewest files counts: a slow forward makes the budget measure."""
SUPPORT = Path(__file__).parents[1] / "support"


@contextmanager
def recording() -> Iterator[set[str]]:
    """Collect the files whose functions are called, in this thread and in new ones."""
    found: set[str] = set()

    def record(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def own(names: set[str]) -> list[Path]:
    """Return those of the files that are Foreword's."""
    paths = (Path(name) for name in names)
    folders = PACKAGES.values()
    return sorted(path for path in paths if any(map(path.is_relative_to, folders)))


def summary(paths: list[Path]) -> dict[str, float]:
    """Return the number of files and of their lines of code."""
    return {"files": len(paths), "lines": sum(len(code(path)) for path in paths)}


def round_files() -> tuple[list[Path], list[Path]]:
    """Return the files that rounds run, and those that the process has imported."""
    from foreword import LLM, SamplingParams

    with LLM() as llm:
        llm.generate("One two three", SamplingParams(max_tokens=8))
        # Whether the budget drafts depends on time; with a fixed number it always does.
        runs = [
            min((rounds_of(llm, seed, nodes) for seed in range(ANSWERS)), key=len)
            for nodes in (None, 4)
        ]
    modules = {getattr(one, "__file__", None) or "" for one in sys.modules.values()}
    return own(set.union(*runs)), own(modules)


def rounds_of(llm: LLM, seed: int, nodes: int | None) -> set[str]:
    """Return the files that the rounds of an answer run after its first."""
    from foreword import SamplingParams

    params = SamplingParams(max_tokens=48, seed=seed, nodes=nodes)
    answer = llm.stream("Once upon a time", params)
    next(answer)
    with recording() as run:
        for _ in answer:
            pass
    return run


def chat_files() -> list[Path]:
    """Return the files that every chat request over HTTP runs, without uvicorn's tick.
    The number of draft tokens is fixed: whether a budget drafts depends on time.
    """
    from foreword import LLM
    from serving import running

    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 32}
    with LLM(nodes=4) as llm, recording() as run, running(llm) as server:
        requests: list[set[str]] = []
        for _ in range(ANSWERS):
            run.clear()
            server.post("/v1/chat/completions", **body)
            requests.append(set(run))
    ticks = {str(PACKAGES["foreword_server"] / "run.py")}
    return own(set.intersection(*requests) - ticks)


@cache
def measure() -> dict[str, dict[str, dict[str, float]]]:
    """Return files and code lines of each path, and lines of what is imported."""
    folders = (folder.parent for folder in PACKAGES.values())
    paths = os.pathsep.join(map(str, (*folders, SUPPORT, Path(__file__).parent)))
    environment = os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    # the first load on a machine checks how it runs the model, which imports more
    first = "import foreword, foreword.model.cost_table as table\n"
    first += "table.BUSY = float('inf')\nforeword.LLM().close()"
    for words in (["-c", first], [__file__]):
        run = subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, check=True
        )
    return json.loads(run.stdout)


def main() -> None:
    run, imported = round_files()
    parts: dict[str, Callable[[], list[Path]]] = {
        "a round runs": lambda: run,
        "a round imports": lambda: imported,
        "a chat request runs": chat_files,
    }
    found = {
        "paths": {name: summary(part()) for name, part in parts.items()},
        "whole": {
            "LLM() and one answer": {
                "lines": sum(len(lines(path)) for path in imported)
            }
        },
    }
    if "-v" in sys.argv:
        sys.stderr.write("".join(f"{path.relative_to(ROOT)}\n" for path in run))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
