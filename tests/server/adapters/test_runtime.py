"""Adapters that clients load and unload while a server runs, over HTTP."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from transformers import AutoModelForCausalLM

import tiny_lora
from foreword import LLM, SamplingParams, bundled
from foreword.errors import InvalidRequest
from foreword_server.lora import routes
from foreword_server.settings import hashed
from serving import Running, running

TEXT = "One day the little girl who lived near the forest. One day the little girl"
LONG = "Rain fell on the hills and ran down to the sea. " * 20
GREEDY = SamplingParams(temperature=0, max_tokens=24)
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = AutoModelForCausalLM.from_pretrained(bundled.target(), dtype="float32")
    home = tmp_path_factory.mktemp("adapters")
    tiny_lora.two(base, home / "inside")
    shutil.copytree(home / "inside" / "a", home / "outside")
    (home / "inside" / "link").symlink_to(home / "outside")
    (home / "inside" / "empty").mkdir()
    return home


@pytest.fixture(scope="module")
def expected(home: Path) -> dict[str, str]:
    """The text of each adapter alone."""
    adapters = {name: home / "inside" / name for name in ("a", "b")}
    with LLM(adapters=adapters, method="none") as llm:
        return {
            name: llm.generate([TEXT], replace(GREEDY, adapter=name))[0].text
            for name in adapters
        }


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Running]:
    keys = hashed(["secret"])
    with (
        LLM(adapters={}, nodes=4) as llm,
        running(llm, adapters=home / "inside", keys=keys) as server,
    ):
        server.http.headers["authorization"] = "Bearer secret"
        yield server


def changed(server: Running, path: str, status: int, **body: Any) -> str:
    """Send a request; return the text of its answer."""
    response = server.http.post(path, json=body)
    assert response.status_code == status, response.text
    return response.text if status == 200 else response.json()["error"]["message"]


def names(server: Running) -> list[str]:
    return [one["id"] for one in server.http.get("/v1/models").json()["data"]]


def complete(server: Running, model: str, prompt: str = TEXT, **more: Any) -> Any:
    body = dict(model=model, prompt=prompt, temperature=0, max_tokens=24)
    return server.post("/v1/completions", **body | more)


def test_adapters_come_and_go_and_keep_their_prefixes_apart(server, expected):
    name = dict(lora_name="sql")
    assert names(server) == ["foreword-family"]
    for folder in ("a", "b"):
        loaded = changed(server, LOAD, 200, **name, lora_path=folder)
        assert loaded == "Success: LoRA adapter 'sql' added successfully."
        assert names(server) == ["foreword-family", "sql"]
        drafted = complete(server, "sql:lm")
        assert drafted["choices"][0]["text"] == expected[folder]
        assert drafted["timings"]["draft_n_accepted"] > 0
        for cached in (False, True):
            usage = complete(server, "sql", LONG)["usage"]
            assert (usage["prompt_tokens_details"]["cached_tokens"] > 0) == cached
        again = changed(server, LOAD, 400, **name, lora_path=folder)
        assert "'sql' has already been loaded" in again
        gone = changed(server, UNLOAD, 200, **name)
        assert gone == "Success: LoRA adapter 'sql' removed successfully."
        changed(server, "/v1/completions", 404, model="sql", prompt=TEXT)
    assert "'sql' cannot be found" in changed(server, UNLOAD, 404, **name)


def test_running_requests_keep_an_unloaded_adapter(server):
    load = dict(lora_name="x", lora_path="a")
    changed(server, LOAD, 200, **load)
    body = dict(prompt=TEXT, max_tokens=200, temperature=0, ignore_eos=True)
    alone = complete(server, "x", **body)["choices"][0]["text"]
    body |= dict(model="x", stream=True)
    texts: list[str] = []
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if not texts:
                again = load | dict(lora_path="b", load_inplace=True)
                changed(server, LOAD, 200, **again)
                changed(server, UNLOAD, 200, lora_name="x")
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                texts += [choice["text"] for choice in chunk["choices"]]
    assert "".join(texts) == alone


def test_waiting_requests_keep_an_unloaded_adapter(home, expected):
    params = replace(GREEDY, adapter="a")
    with LLM(adapters={"a": home / "inside" / "a"}) as llm:
        waiting = llm.session.prepare(TEXT, params)
        llm.target.adapters = {}
        (answer,) = llm.session.completions(waiting)
    assert answer.text == expected["a"]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("", 400, "Both 'lora_name' and 'lora_path' must be provided."),
        ("none", 404, "No adapter found for 'none'"),
        ("../outside", 404, "No adapter found for '../outside'"),
        ("link", 404, "No adapter found for 'link'"),
        ("a\0b", 404, "No adapter found"),
        ("empty", 400, "cannot use the adapter in empty: adapter_config.json"),
    ],
)
def test_wrong_adapters_are_refused(server, home, monkeypatch, path, status, words):
    message = changed(server, LOAD, status, lora_name="y", lora_path=path)
    assert words in message
    assert str(home) not in message
    outside = str(home / "outside")
    assert "No adapter" in changed(server, LOAD, 404, lora_name="y", lora_path=outside)
    for name in ("foreword-family", "a b", "a:lm", "a" * 129):
        message = changed(server, LOAD, 400, lora_name=name, lora_path="a")
        assert "cannot name" in message
    monkeypatch.setattr(routes, "MOST", 0)
    assert "are loaded" in changed(server, LOAD, 400, lora_name="y", lora_path="a")
    body = {"lora_name": "z", "lora_path": "a"}
    assert httpx.post(f"{server.url}{LOAD}", json=body).status_code == 401
    assert names(server) == ["foreword-family"]


def test_servers_without_the_option_or_the_backend_load_none(home):
    with LLM() as llm, running(llm) as server:
        message = changed(server, LOAD, 404, lora_name="a", lora_path="a")
        assert "without '--lora-folder'" in message
    with LLM(backend="pool", adapters={}) as llm:
        refused = pytest.raises(InvalidRequest, match="only 'native' takes more")
        with refused, running(llm, adapters=home):
            pass


@pytest.mark.parametrize("more", [("--replicas", "2"), ("--models", ".")], ids=str)
def test_several_processes_load_none(here, tmp_path, more):
    ended = here("serve", "--lora-folder", str(tmp_path), *more)
    assert ended.returncode == 2
    assert "cannot use '--lora-folder' with several processes" in ended.stderr
