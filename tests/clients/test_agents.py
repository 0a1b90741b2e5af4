"""Coding agents as users run them; a proxy has the model call their tools."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny_long
from clients import programs
from clients.agents import AGENTS, MODEL, NOTE, PICTURE, Agent, Place
from clients.proxy import LAST, Proxy, between
from foreword import LLM
from foreword.chats.images import KINDS
from serving import Running, running
from tiny_vision import picture

pytestmark = pytest.mark.clients

SECRET = "gasolene-4711"
"""Only the note says it."""
ALONE = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
"""The way out is a port at which nothing answers: an agent needs no network."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tiny_long.saved(tmp_path_factory.mktemp("long"))
    with (
        LLM(folder, dtype="float32", chunk=2048) as llm,
        running(llm, name=MODEL) as server,
    ):
        yield server


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a folder with a note and a picture."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / NOTE).write_text(f"The word is {SECRET}.\n")
    picture(40, 24).save(folder / PICTURE)
    return folder


def run(agent: Agent, place: Place, longest: float = programs.LONGEST) -> str:
    """Return what the agent prints; skip the test where it is not installed."""
    program = programs.AGENTS / agent.program
    if not shutil.which("node"):
        pytest.skip("node is not installed")
    if not program.exists():
        pytest.skip(
            f"{agent.program} is not installed: `make test-clients` does it, by npm"
        )
    arguments, environment = agent.settings(place)
    command = [str(program), *arguments]
    environment |= ALONE
    return programs.ran(command, place.work, place.home, environment, longest=longest)


def conversation(body: dict[str, Any]) -> list[Any]:
    """Return the messages or items of a request."""
    return body.get("messages") or body["input"]


def has_image(value: Any) -> bool:
    """Return whether there is an image anywhere in a JSON value."""
    if isinstance(value, list):
        return any(map(has_image, value))
    if not isinstance(value, dict):
        return False
    return value.get("type") in KINDS or any(map(has_image, value.values()))


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_reads_a_note_and_a_picture(served, tmp_path, work, name):
    agent, home = AGENTS[name], tmp_path / "home"
    home.mkdir()
    script = agent.calls(work)
    with between(served.url, script) as proxy:
        printed = run(agent, Place(proxy.url, home, work))
    assert LAST in printed
    check(proxy, sees=agent.sees)


def check(proxy: Proxy, *, sees: bool) -> None:
    """Check that every request succeeded, with results in the script's order."""
    assert {status for _, status in proxy.statuses} == {200}
    turns = proxy.turns
    assert len(turns) == len(proxy.script) + 1
    assert all(turn["stream"] for turn in turns)
    for number, turn in enumerate(turns):
        said = conversation(turn)
        assert (SECRET in json.dumps(said)) == (number > 0)
        assert has_image(said) == (sees and number > 1)
