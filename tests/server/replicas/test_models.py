"""Models by name: loaded by the first request, unloaded for others, and listed."""

import asyncio
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import huggingface_hub
import pytest

from asking import user
from foreword import bundled
from foreword.errors import InvalidRequest
from foreword_server.errors import ApiError, PrivatePaths
from foreword_server.limits import Limits
from foreword_server.log import Log
from foreword_server.replicas import models
from foreword_server.replicas.app import build_router
from foreword_server.replicas.catalog import Catalog, Entry, read_catalog
from foreword_server.replicas.hosted import GIB, Hosted, at_once
from foreword_server.replicas.models import ManyModels
from foreword_server.replicas.places import VISIBLE
from foreword_server.replicas.router import Pings, Router
from foreword_server.replicas.serve import many_models
from foreword_server.replicas.supervise import Supervisor
from foreword_server.settings import Settings
from foreword_server.wire import Json

BUNDLED = bundled.target().parent
CHAT = "/v1/chat/completions"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two models."""
    models = tmp_path / "models"
    models.mkdir()
    (models / "large").symlink_to(BUNDLED / "target")
    (models / "small").symlink_to(BUNDLED / "draft")
    (models / "notes.txt").write_text("no model")
    return models


def ask(router: Any, model: str, **more: Any) -> Any:
    body = dict(max_tokens=24, seed=5, ignore_eos=True, **more)
    body |= dict(model=model, messages=[user("Say something.")])
    return router.http.post(CHAT, json=body)


def leave_while_loading(router: Any, model: str) -> None:
    """Ask for a model, and leave before it is loaded."""
    body = json.dumps({"model": model, "prompt": "Hi"}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
    url = router.http.base_url
    with socket.create_connection((url.host, url.port)) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        router.wait(lambda: states(router)[model] == "loading")


def content(response: Any) -> str:
    return response.json()["choices"][0]["message"]["content"]


def states(router: Any) -> dict[str, str]:
    listed = router.http.get("/v1/models").json()["data"]
    return {one["id"]: one["status"]["value"] for one in listed}


def test_models_are_loaded_when_named_and_unloaded_for_others(routing, folder):
    """The memory holds one of them at a time."""
    options = ("--models", str(folder), "--models-memory", "0.6")
    with routing(*options, replicas=None) as router:
        assert states(router) == {"large": "unloaded", "small": "unloaded"}
        leave_while_loading(router, "large")
        router.wait(lambda: states(router)["large"] != "loading")
        assert states(router)["large"] == "loaded"
        large = ask(router, "large")
        assert len(router.events("model loaded")) == 1
        assert large.json()["model"] == "large"
        assert states(router) == {"large": "loaded", "small": "unloaded"}
        small = ask(router, "small:ngram")
        assert states(router) == {"large": "unloaded", "small": "loaded"}
        assert content(small) != content(large)
        again = ask(router, "default")
        assert content(again) == content(large)
        assert router.http.get("/health").json()["models"]["small"] == "unloaded"
        unknown = ask(router, "other")
        assert unknown.status_code == 404
        assert "large, small" in unknown.json()["error"]["message"]
        shown = router.http.get("/v1/models/large").json()
        assert shown["status"] == {"value": "loaded"}
        anthropic = {"anthropic-version": "2023-06-01"}
        listed = router.http.get("/v1/models", headers=anthropic).json()
        assert [one["type"] for one in listed["data"]] == ["model", "model"]
        events = router.wait(lambda: router.events("model unloaded")[1:])
        assert [one["model"] for one in events] == ["small"]


@pytest.mark.slow
@pytest.mark.parametrize(("device", "gib"), [("cpu", 0.6), ("auto", 64)])
def test_models_take_turns_and_clients_see_that_the_server_lives(
    folder, monkeypatch, device, gib
):
    """The memory, or the GPU, holds one of them at a time, and the queue one answer."""
    monkeypatch.setenv(VISIBLE, "0")
    monkeypatch.setattr(models, "PING_SECONDS", 0.01)
    entries = read_catalog(folder, {"nodes": 4, "device": device})
    limits = dict(memory=int(gib * GIB), unused=0, seconds=300)
    begin = many_models(Catalog(entries=entries, **limits), Settings(port=0))

    async def main() -> None:
        begun = await begin(Log())
        limits = Limits(1, None, None)
        router = Router(Settings(port=0), Log(), limits, PrivatePaths(), begun.models)
        transport = httpx.ASGITransport(build_router(router, None, begun.stop))
        client = dict(base_url="http://localhost", transport=transport, timeout=300)
        try:
            async with httpx.AsyncClient(**client) as http:
                await check_pings_and_queue(begun.models, http)
            monkeypatch.setattr(models, "TURN_SECONDS", 0)
            await check_turns(begun.models)
        finally:
            await begun.stop()

    asyncio.run(main())


async def check_pings_and_queue(models: Any, http: httpx.AsyncClient) -> None:
    """A stream pings while its model is loaded, and takes no place in the queue."""
    body = {"model": "large", "prompt": "Hi", "max_tokens": 2}
    path = "/v1/completions"
    streamed = await http.post(path, json={**body, "stream": True})
    assert streamed.text.startswith(": ping\n\n")
    assert streamed.text.endswith("data: [DONE]\n\n")
    async with models.lease("large"):
        small = asyncio.create_task(http.post(path, json={**body, "model": "small"}))
        while models.named("small").loading is None:
            assert not small.done()
            await asyncio.sleep(0)
        assert (await http.post(path, json=body)).status_code == 200
    assert (await small).status_code == 200
    assert models.state == {"models": {"large": "unloaded", "small": "loaded"}}


async def check_turns(models: Any) -> None:
    """A model is loaded although two clients use the other without a pause."""

    async def use(name: str, times: int) -> None:
        for _ in range(times):
            async with models.lease(name):
                await asyncio.sleep(0)

    waiting = asyncio.create_task(use("large", 1))
    clients = [asyncio.create_task(use("small", 100_000)) for _ in range(2)]
    tasks = {waiting, *clients}
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert waiting.done()
    assert not any(one.done() for one in clients)
    for one in clients:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_an_error_after_a_ping_is_an_event():
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    pings = Pings(send, b"event: error\n")

    async def main() -> None:
        await pings.ping()
        await Json({"error": "cannot load"}, 503)({"type": "http"}, None, pings)

    asyncio.run(main())
    assert [one.get("status") for one in messages] == [200, None, None]
    assert messages[1]["body"] == b": ping\n\n"
    assert messages[2]["body"] == b'event: error\ndata: {"error":"cannot load"}\n\n'
    assert not messages[2].get("more_body")


@pytest.mark.slow
def test_drafter_is_shared_and_one_model_stays(routing, folder, tmp_path):
    catalog = tmp_path / "models.toml"
    catalog.write_text(
        """
        draft = "models/small"
        method = "lm"

        [models.kept]
        model = "bundled"
        keep = true

        [models.other]
        model = "models/large"
        draft = "models/small"

        [models.broken]
        model = "models"
        """
    )
    options = ("--models", str(catalog), "--unload-after", "1")
    with routing(*options, replicas=None) as router:
        assert states(router)["kept"] == "loaded"
        kept = ask(router, "kept")
        other = ask(router, "other")
        assert content(kept) == content(other)
        for answer in (kept, other):
            counts = answer.json()["metrics"]["speculative_decoding"]
            assert counts["num_accepted_draft_tokens"] > 0
        router.wait(lambda: router.events("model unloaded"))
        others = dict.fromkeys(("other", "broken"), "unloaded")
        assert states(router) == {"kept": "loaded", **others}
        broken = ask(router, "broken")
        assert broken.status_code == 400
        assert "cannot load model 'broken'" in broken.json()["error"]["message"]
        assert content(ask(router, "kept")) == content(kept)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there are none"),
        ("[models", "Give a folder, or a file of TOML"),
        ("models = 3", "'models' is a value"),
        ("[models.a]", "has no 'model'"),
        ("[models.a]\nmodel = 3", "'model' must be str"),
        ("[models.a]\nmodel = './none'", "'./none' does not exist"),
        ("[models.a]\nmodel = 'x'\nweigths = 'int8'", "Did you mean 'weights'?"),
        ("[models.a]\nmodel = 'x'\nweights = 'int3'", "int3"),
        ("[models.a]\nmodel = 'x'\nreplicas = 0", "must be 1 or more"),
        ("[models.'a:b']\nmodel = 'x'", "the name may hold"),
        ("speed = 3\n[models.a]\nmodel = 'x'", "'speed' is not known"),
        ("[models.a]\nmodel = 'x'\nadapters = {a = 'y'}", "two are named 'a'"),
    ],
)
def test_faults_of_a_catalog_are_named(tmp_path, text, words):
    path = tmp_path / "models.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as error:
        read_catalog(path, {})
    assert words in str(error.value)


def test_entries_take_the_options_of_all(folder):
    path = folder.parent / "models.toml"
    path.write_text(
        """
        nodes = 4
        models.a = "models/large"
        models.b = { model = "org/name", nodes = 2, replicas = 2 }
        """
    )
    first, second = read_catalog(path, {"nodes": 8, "dtype": "float32"})
    assert first.model == str(folder / "large")
    assert first.options == {"nodes": 4, "dtype": "float32"}
    assert first.bytes > 1000
    assert second.model == "org/name"
    assert second.options == {"nodes": 2, "dtype": "float32"}
    assert second.replicas == 2
    assert second.bytes == 0


def test_a_hub_id_counts_with_its_files_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    model = tmp_path / "models--org--name"
    snapshot = model / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(bytes(3 * 2**20))
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0" * 40)
    cached = Entry(name="name", model="org/name")
    absent = Entry(name="other", model="org/other")
    assert cached.bytes == 3 * 2**20
    assert absent.bytes == 0
    two = Entry(name="two", model="org/name", replicas=2)
    assert Hosted(two).bytes == 2 * Hosted(cached).bytes
    entries = [cached, absent, two]
    assert at_once(entries, Hosted(absent).bytes - 1) == 1
    assert at_once(entries, Hosted(absent).bytes + 2 * Hosted(cached).bytes) == 3
    assert at_once(entries, 2**40) == 4


def test_own_names_come_before_any_other_names():
    known = ("first", "gpt-oss", "o1:x")
    entries = [Entry(name=name, model="bundled") for name in known]

    def never(entry: Entry) -> Supervisor:
        raise AssertionError(entry)

    names = {"gpt-oss": "gpt-oss", "gpt-oss:ngram": "gpt-oss"}
    names |= {"default": "first", "o1:x": "o1:x"}
    for any_model in (True, False):
        options = dict(seconds=0, gpus=False, any_model=any_model)
        models = ManyModels(entries, never, Log(), memory=2**40, **options)
        for name, expected in names.items():
            assert models.named(name).entry.name == expected
        if any_model:
            assert models.named("gpt-5").entry.name == "first"
    with pytest.raises(ApiError, match="cannot use model 'second'"):
        models.named("second")
    entries[0] = replace(entries[0], keep=True)
    with pytest.raises(InvalidRequest, match="cannot keep model 'first' loaded"):
        ManyModels(entries, never, Log(), memory=2**40, seconds=0, gpus=True)


def test_adapters_in_a_folder_belong_to_their_model(folder):
    adapter = folder / "tone"
    adapter.mkdir()
    config = adapter / "adapter_config.json"
    config.write_text('{"base_model_name_or_path": "/elsewhere/large"}')
    large, small = read_catalog(folder, {})
    assert large.names == ["large", "tone"]
    assert large.options == {"adapters": {"tone": str(adapter)}}
    assert small.names == ["small"]
    config.write_text("{}")
    with pytest.raises(InvalidRequest, match="it names no model"):
        read_catalog(folder, {})


def test_folders_are_named_in_full(tmp_path):
    names = ["Llama-3.1-8B", "Llama-3.2-1B", "Phi-3.5-mini-instruct"]
    names += ["Qwen2.5-7B-Instruct", "gemma-3-4b-it.v1.0"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    parts = ("Qwen2.5-7B-Q4_K_M-00001-of-00002", "Qwen2.5-7B-Q4_K_M-00002-of-00002")
    for file in (*parts, "Llama-3.2-1B-Instruct.Q8_0"):
        (tmp_path / f"{file}.gguf").touch()
    files = ["Qwen2.5-7B-Q4_K_M", "Llama-3.2-1B-Instruct.Q8_0"]
    assert {one.name for one in read_catalog(tmp_path, {})} == {*names, *files}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("bundled",), "with MODEL"),
        (("--replicas", "2"), "with '--replicas'"),
        (("--lora", "a=b"), "with '--lora'"),
        (("--models-memory", "0.01"), "it takes about"),
    ],
)
def test_what_contradicts_a_catalog_is_said(folder, here, options, words):
    run = replace(here, folder=folder.parent)
    ended = run("serve", *options, "--models", "models", "--port", "0")
    assert ended.returncode == 2
    assert words in " ".join(ended.stderr.split())
