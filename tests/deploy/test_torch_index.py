"""The index of torch: CPU builds where they can be had and are wanted."""

import importlib
import socket
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import ModuleType

import pytest

from serving import Quiet, answering

RECIPES = Path(__file__).parents[2] / "recipes"


class Index(Quiet, BaseHTTPRequestHandler):
    """A package index that has torch in one of its folders."""

    def do_HEAD(self) -> None:
        self.send_response(200 if self.path == "/cpu/torch/" else 404)
        self.end_headers()


@pytest.fixture(scope="module")
def torch_index() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(RECIPES))
        yield importlib.import_module("torch_index")
        sys.modules.pop("torch_index", None)


@pytest.fixture
def server() -> Iterator[str]:
    with answering(Index) as found:
        yield found


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/cpu"


@pytest.fixture
def closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return f"http://127.0.0.1:{port}/cpu"


def test_cpu_builds_are_taken_from_an_index_that_answers(torch_index, server):
    option, reason = torch_index.option(f"{server}/cpu", gpu=False)
    assert option == f"--index-url {server}/cpu"
    assert "no NVIDIA GPU" in reason


def test_a_gpu_keeps_the_usual_index(torch_index, server):
    option, reason = torch_index.option(f"{server}/cpu", gpu=True)
    assert option == ""
    assert "NVIDIA" in reason


def test_an_index_without_torch_is_left_out(torch_index, server):
    option, reason = torch_index.option(f"{server}/other", gpu=False)
    assert option == ""
    assert f"{server}/other does not answer" in reason


@pytest.mark.parametrize("index", ["silent", "closed"])
def test_an_index_out_of_reach_is_left_out(torch_index, request, index):
    address = request.getfixturevalue(index)
    assert not torch_index.answers(address, seconds=0.2)


def test_a_gpu_is_found_by_its_driver_or_its_tool(torch_index, tmp_path):
    driver = tmp_path / "version"
    absent = "nvidia-smi-that-is-not-there"
    assert not torch_index.has_gpu([driver], absent)
    assert torch_index.has_gpu([driver], "python3")
    driver.write_text("NVRM version", encoding="utf-8")
    assert torch_index.has_gpu([driver], absent)
