"""The clients of other projects in an environment of their own."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from clients.programs import PROGRAMS, ran
from serving import Running


@pytest.fixture
def client(tmp_path: Path, server: Running) -> Callable[..., str]:
    """Return a function that runs a client in an empty folder for its output."""

    def run(program: str, *arguments: str, given: str = "", **environment: str) -> str:
        if not (PROGRAMS / program).exists():
            pytest.skip(f"{program} is not installed: `make test-clients` does it")
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
        command = [str(PROGRAMS / program), *arguments]
        return ran(command, tmp_path, tmp_path, offline | environment, given)

    return run


@pytest.fixture
def program(client: Callable[..., str], server: Running) -> Callable[[str], Any]:
    """Return a function that runs Python beside the server and returns its JSON."""
    return lambda code: json.loads(
        client("python", "-", given=f"URL = {server.url + '/v1'!r}\n{code}")
    )


@pytest.fixture
def drafting(server: Running) -> Callable[[], AbstractContextManager[None]]:
    """Return a context manager that checks that drafts were made and accepted."""

    def counts() -> Mapping[str, float]:
        text = server.http.get("/metrics").text
        names = (
            "vllm:spec_decode_num_draft_tokens_total",
            "vllm:spec_decode_num_accepted_tokens_total",
        )
        return {
            name: sum(
                map(float, re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE))
            )
            for name in names
        }

    @contextmanager
    def checked() -> Iterator[None]:
        before = counts()
        yield
        after = counts()
        assert all(after[name] > before[name] for name in after), (before, after)

    return checked
