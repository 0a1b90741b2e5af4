"""Without a key nothing but open paths is answered, however a request is written."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from foreword.page.files import NAMES
from foreword.server import speech
from foreword.server.app import build_app
from foreword.server.limits import Limits
from foreword.server.log import Log
from foreword.server.replicas.app import build_router, served
from foreword.server.replicas.catalog import Entry
from foreword.server.replicas.models import ManyModels
from foreword.server.replicas.router import Router
from foreword.server.routes import ROUTES, decided
from foreword.server.settings import Settings, hashed
from serving import Running

Serving = Callable[..., AbstractContextManager[Running]]
KEYS = {"FOREWORD_API_KEYS": "one,two"}
FINISHED = 'finished_reason="length"'


def test_table_has_the_routes_of_every_application(server: Running) -> None:
    """A route that is added to an application has to be decided upon."""
    table = {(route.path, method) for route in ROUTES for method in route.methods}
    sounds = FastAPI(openapi_url=None)
    sounds.include_router(speech.routes(server.service))
    assert served(build_app(server.service)) | served(sounds) == table

    def never(entry: Entry) -> Any:
        raise AssertionError(entry)

    async def end() -> None:
        """Nothing runs."""

    entries, settings = [Entry(name="a", model="bundled")], Settings()
    models = ManyModels(entries, never, Log(), memory=2**40, seconds=0)
    router = Router(settings, models, Log(), Limits(1, None, None))
    assert served(build_router(router, None, end)) == table


def test_named_files_of_the_page_are_open() -> None:
    keys = Settings(keys=hashed(["one"]))
    assert {"index.html", "main.js", "chat/chat.js", "vendor/marked.js"} < {*NAMES}
    for name in NAMES:
        decision = decided("GET", f"/page/{name}".encode(), settings=keys)
        assert decision.refusal is None
        assert not decision.needs_key
    for name in ("vendor/VERSIONS.md", "", "main.js/", "chat"):
        assert decided("GET", f"/page/{name}".encode(), settings=keys).refusal


def test_name_of_a_model_may_be_escaped() -> None:
    """As clients write it that build paths from names."""
    for name in ("org/name", "org%2Fname", "name:lm", "name%3Alm", "a%20b"):
        target = f"/v1/models/{name}"
        decision = decided("GET", target.encode(), b"methods=1")
        assert decision.refusal is None
        assert decision.target == f"{target}?methods=1"
    for name in ("..", "%2e%2E", "a/../b", "..%2fb", "a//b", "a%00", "a%5Cb", ""):
        assert decided("GET", f"/v1/models/{name}".encode()).refusal


def test_one_process_answers_no_stranger(serving: Serving, stranger: Any) -> None:
    with serving(keys=hashed(["one"])) as server:
        client = stranger(server.url)
        client.try_everything()
        assert FINISHED not in server.service.metrics.text().decode()
        assert client.generates()
        assert FINISHED in server.service.metrics.text().decode()


def test_strangers_load_no_model(routing: Any, stranger: Any, tmp_path: Path) -> None:
    models = tmp_path / "models.toml"
    models.write_text('models.first = "bundled"\nmodels.second = "bundled"')
    options = ("--models", str(models))
    with routing(*options, replicas=None, **KEYS) as router:
        client = stranger(router.http.base_url)
        client.try_everything()
        assert b"first" not in client.ask("GET", "/health")[1]
        router.http.headers["authorization"] = "Bearer one"
        unloaded = {"first": "unloaded", "second": "unloaded"}
        assert router.http.get("/health").json()["models"] == unloaded
        body = {"model": "second"}
        for method, path in (
            ("OPTIONS", "/v1/chat/completions"),
            ("GET", "/v1/models/second"),
            ("GET", "/speculation"),
            ("GET", "/"),
            ("GET", "/page/main.js"),
            ("GET", "/openapi.json"),
        ):
            router.http.request(method, path, json=body)
        assert router.http.get("/health").json()["models"] == unloaded
        assert client.generates()
        loaded = {"first": "loaded", "second": "unloaded"}
        assert router.http.get("/health").json()["models"] == loaded
        assert router.http.get("/speculation").json()["model"] == "first"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_answers_no_stranger(routing: Any, stranger: Any) -> None:
    pytest.importorskip("ray")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    options = ("--ray", "local", "--port", port)
    with routing(*options, replicas="1", **KEYS) as router:
        client = stranger(router.http.base_url)
        client.try_everything()
        router.http.headers["authorization"] = "Bearer one"
        assert FINISHED not in router.http.get("/metrics").text
        assert client.generates()
        assert FINISHED in router.http.get("/metrics").text
