"""Without a key nothing but open paths is answered, however a request is written."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from foreword import bundled
from foreword_server import speech
from foreword_server.app import build_app
from foreword_server.cluster.called import called
from foreword_server.errors import PrivatePaths
from foreword_server.limits import Limits
from foreword_server.log import Log
from foreword_server.page.files import NAMES
from foreword_server.replicas.app import build_router, served
from foreword_server.replicas.catalog import Entry
from foreword_server.replicas.models import ManyModels, Models
from foreword_server.replicas.places import Place
from foreword_server.replicas.pool import Asked
from foreword_server.replicas.process import Start
from foreword_server.replicas.router import Router
from foreword_server.replicas.serve import OneModel
from foreword_server.replicas.supervise import Supervisor
from foreword_server.routes import ROUTES, decided
from foreword_server.settings import Settings, hashed
from waiting import free_port

BUNDLED = bundled.target().parent
CHAT = "/v1/chat/completions"
KEYS = {"FOREWORD_API_KEYS": "one,two"}
FINISHED = 'finished_reason="length"'


def test_table_has_the_routes_of_every_application(server):
    """A route that is added to an application has to be decided upon."""
    table = {(route.path, method) for route in ROUTES for method in route.methods}
    sounds = FastAPI(openapi_url=None)
    sounds.include_router(speech.routes(server.service))
    assert served(build_app(server.service)) | served(sounds) == table

    def never(entry: Entry) -> Any:
        raise AssertionError(entry)

    entries = [Entry(name="a", model="bundled")]
    models = ManyModels(entries, never, Log(), memory=2**40, seconds=0, gpus=False)
    assert served(routed(models, Limits(1, None, None))) == table


def routed(models: Models, limits: Limits) -> FastAPI:
    """Return a router without processes."""

    async def end() -> None:
        """Nothing runs."""

    router = Router(Settings(), Log(), limits, PrivatePaths(), models)
    return build_router(router, None, end)


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", CHAT])
def test_sounds_and_texts_take_places_of_the_router(path):
    limits = Limits(1, None, None)
    kind = (b"content-type", b"application/json")

    async def ask() -> Any:
        asked = Asked("POST", path, [(b"host", b"localhost"), kind], b"{}")
        start = Start(None, {}, Settings())
        model = OneModel(Supervisor(start, [Place()], 1.0, Log()))
        with limits.place("", 1):
            return await anext(called(routed(model, limits), asked, float))

    assert asyncio.run(ask())[0] == 429


def test_named_files_of_the_page_are_open():
    keys = Settings(keys=hashed(["one"]))
    assert {"index.html", "main.js", "chat/chat.js", "vendor/marked.js"} < {*NAMES}
    for name in NAMES:
        decision = decided("GET", f"/page/{name}".encode(), settings=keys)
        assert decision.refusal is None
        assert not decision.needs_key
    for name in ("vendor/VERSIONS.md", "", "main.js/", "chat"):
        assert decided("GET", f"/page/{name}".encode(), settings=keys).refusal


def test_name_of_a_model_may_be_escaped():
    """Clients that build paths from names escape them."""
    for name in ("org/name", "org%2Fname", "name:lm", "name%3Alm", "a%20b"):
        target = f"/v1/models/{name}"
        decision = decided("GET", target.encode(), b"methods=1")
        assert decision.refusal is None
        assert decision.target == f"{target}?methods=1"
    for name in ("..", "%2e%2E", "a/../b", "..%2fb", "a//b", "a%00", "a%5Cb", ""):
        assert decided("GET", f"/v1/models/{name}".encode()).refusal


def test_one_process_answers_no_stranger(serving, stranger):
    with serving(keys=hashed(["one"])) as server:
        client = stranger(server.url)
        client.try_everything()
        assert FINISHED not in server.service.metrics.text().decode()
        assert client.generates()
        assert FINISHED in server.service.metrics.text().decode()


def test_only_a_request_that_needs_a_model_loads_one(routing, stranger, tmp_path):
    """The memory holds one model at a time."""
    folder = tmp_path / "private" / "models"
    (folder / "zero").mkdir(parents=True)
    (folder / "zero" / "config.json").write_text("{}")
    (folder / "first").symlink_to(BUNDLED / "target")
    options = ("--models", str(folder), "--models-memory", "0.6")
    with routing(*options, replicas=None, **KEYS) as router:
        client = stranger(router.http.base_url)
        client.try_everything()
        assert b"first" not in client.ask("GET", "/health")[1]
        router.http.headers["authorization"] = "Bearer one"
        for method, path in (
            ("OPTIONS", CHAT),
            ("GET", "/v1/models/first"),
            ("GET", "/speculation"),
            ("GET", "/"),
            ("GET", "/page/main.js"),
            ("GET", "/openapi.json"),
        ):
            router.http.request(method, path, json={"model": "first"})
        assert states(router) == {"first": "unloaded", "zero": "unloaded"}
        refused = check_broken(router, tmp_path)
        assert client.generates()
        assert states(router) == {"first": "loaded", "zero": "unloaded"}
        assert router.http.get("/speculation").json()["model"] == "first"
        assert check_broken(router, tmp_path) == refused
        # it is not tried again, so the other one stays
        assert states(router) == {"first": "loaded", "zero": "unloaded"}


def states(router: Any) -> Any:
    return router.http.get("/health").json()["models"]


def check_broken(router: Any, folder: Path) -> str:
    """Return why a model cannot be loaded, in words that tell no folder."""
    body = {"model": "zero", "messages": [{"role": "user", "content": "Hi"}]}
    refused = router.http.post(CHAT, json=body)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["code"] == "model_not_loaded"
    assert error["message"].startswith("cannot load model 'zero'")
    assert str(folder) not in error["message"]
    return error["message"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_answers_no_stranger(routing, stranger):
    pytest.importorskip("ray")
    options = ("--ray", "local", "--port", str(free_port()))
    with routing(*options, replicas="1", **KEYS) as router:
        client = stranger(router.http.base_url)
        client.try_everything(reads_trailers=True)
        router.http.headers["authorization"] = "Bearer one"
        assert FINISHED not in router.http.get("/metrics").text
        assert client.generates()
        assert FINISHED in router.http.get("/metrics").text
