"""The agents do a small task with a published model, which chooses what they call. What
it manages is printed (`pytest -s`); tested are ends, answers and calls of known tools.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.agents import AGENTS, MODEL, Place
from clients.proxy import Proxy, between, name_of
from clients.test_agents import conversation, run
from foreword import LLM
from real.fetching import fetched
from serving import Running, running

pytestmark = pytest.mark.clients

TASK = (
    "Write a file hello.py that prints hello and run it with python3. Then change it "
    "so that it prints hello world, run it again, and tell me what it printed."
)
HALF_HOUR = 1800
"""Seconds. On two cores some ten thousand tokens of instructions take minutes."""


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with (
        LLM(fetched("qwen-1.5b"), draft=fetched("qwen-0.5b")) as llm,
        running(llm, name=MODEL) as server,
    ):
        yield server


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_works_on_a_small_task(served, tmp_path, name):
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    with between(served.url, None) as proxy:
        printed = run(AGENTS[name], Place(proxy.url, home, work, TASK), HALF_HOUR)
    assert {status for _, status in proxy.statuses} == {200}
    calls = [call for body in proxy.turns[-1:] for call in called(conversation(body))]
    show(name, proxy, calls, work, printed)
    assert {call for call, _ in calls} <= {
        name_of(tool) for body in proxy.turns for tool in body.get("tools") or ()
    }


def called(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the calls in a conversation of any of the three APIs: tool, arguments."""
    if isinstance(value, list):
        for part in value:
            yield from called(part)
    elif isinstance(value, dict) and value.get("type") == "tool_use":
        yield value["name"], value["input"]
    elif isinstance(value, dict) and value.get("type") in ("function", "function_call"):
        function = value.get("function", value)
        yield function["name"], function["arguments"]
    elif isinstance(value, dict):
        yield from called([value.get("content"), value.get("tool_calls")])


def show(
    name: str, proxy: Proxy, calls: list[tuple[str, Any]], work: Path, printed: str
) -> None:
    """Print what an agent did: its requests, its calls, and the file."""
    file = work / "hello.py"
    lines = [
        f"\n{name}: {len(proxy.turns)} answers, {len(calls)} calls in the last",
        *(f"{tool} {json.dumps(arguments)[:160]}" for tool, arguments in calls),
        f"hello.py: {file.read_text() if file.exists() else None!r}",
        f"printed: {printed.strip()[-300:]!r}",
    ]
    sys.stdout.write("\n  ".join(lines) + "\n")
