"""One client cannot stop the others: bounds of bodies, texts and connections."""

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from threading import Event
from typing import Any

import httpx2 as httpx
import pytest
from pydantic import ValidationError

from asking import user
from foreword import AsyncLLM, SamplingParams
from foreword.api.requests import Requests
from foreword.errors import ContextExceeded
from foreword.wanted import Abandoned, check_wanted
from foreword_server import connections
from foreword_server.app import BODIES
from foreword_server.body import parsed
from foreword_server.dialects.chat import ChatBody
from foreword_server.errors import ApiError, PrivatePaths
from foreword_server.limits import MOST_ITEMS
from foreword_server.service import LONG, Texts
from serving import Running

CHAT = "/v1/chat/completions"
TURNS = [user("Define the word river.")]
ASK: dict[str, Any] = {"messages": TURNS, "max_tokens": 3, "seed": 1}
LIST_FIELDS = [
    (kind, field.validation_alias if isinstance(field.validation_alias, str) else name)
    for kind in BODIES
    for name, field in kind.model_fields.items()
    if "list[" in str(field.annotation)
]


# ---- bodies


@pytest.mark.parametrize(
    ("kind", "name"), LIST_FIELDS, ids=lambda one: getattr(one, "__name__", one)
)
def test_the_check_of_a_list_ends_at_its_first_fault(kind, name):
    """An error for each item of a list cost 1.2 GiB for 1.9 MiB of zeros."""
    wrong = [{"a": [object()]}] if name == "prompt" else [object()]
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({name: wrong * 1000})
    assert sum(fault["loc"][0] == name for fault in caught.value.errors()) <= 8


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": [{}] * 20_000}, "it has 20000 items, and the limit is 16384"),
        ({"stop": ["x"] * 300}, "'stop': it has 300 items, and the limit is 256"),
        ({"stop_token_ids": [5] * 5000}, "it has 5000 items, and the limit is 4096"),
        ({"bad_words": ["x"] * 1100}, "it has 1100 items, and the limit is 1024"),
        ({"tools": [{}] * 1100}, "'tools': it has 1100 items, and the limit is 1024"),
        ({"logit_bias": {str(one): 1 for one in range(5000)}}, "5000 members"),
        ({"bad_words": ["x" * 300]}, "at most 256 characters"),
    ],
)
def test_a_list_that_is_too_long_is_refused_in_words(server, fields, words):
    response = server.http.post(CHAT, json=ASK | fields)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_body_of_too_many_values_is_not_parsed():
    body = b'{"messages": [' + b"{}," * MOST_ITEMS  # no JSON: a parser would say so
    with pytest.raises(ApiError, match=f"the limit is {MOST_ITEMS}") as caught:
        parsed(body, ChatBody)
    assert caught.value.status == 413


def test_bodies_together_are_bounded(serving):
    with serving() as server:
        server.service.limits.bytes = 1000
        large = ASK | {"metadata": {"x": "x" * 2000}}
        assert server.http.post(CHAT, json=large).status_code == 429
        small = [server.http.post(CHAT, json=ASK) for _ in range(9)]
        assert [response.status_code for response in small] == [200] * 9


@pytest.mark.parametrize("kind", [None, "text/plain", "multipart/form-data"])
def test_a_body_of_another_type_is_refused(server, kind):
    headers = {} if kind is None else {"content-type": kind}
    response = server.http.post(CHAT, content=json.dumps(ASK).encode(), headers=headers)
    assert response.status_code == 400
    assert "Send application/json" in response.json()["error"]["message"]


# ---- texts


@pytest.fixture
def held(server: Running) -> Iterator[Callable[[int], None]]:
    """Return a function that keeps the thread for long bodies busy in a test."""
    release = Event()

    def hold(size: int) -> None:
        begun = Event()

        def work() -> None:
            begun.set()
            release.wait(60)

        server.service.texts._threads[size >= LONG].submit(work)
        assert begun.wait(60)

    yield hold
    release.set()


def test_a_long_text_is_not_in_front_of_short_ones(server, held):
    held(LONG)
    assert server.post(CHAT, **ASK)["usage"]["completion_tokens"] == 3
    assert server.http.get("/health").status_code == 200


def left(server: Running) -> float:
    """The answers of this server whose client left, as its metrics count them."""
    name = 'foreword:clients_left_total{engine="0",model_name="foreword-family"} '
    text = server.http.get("/metrics").text
    return float(text.partition(name)[2].partition("\n")[0])


def test_work_is_dropped_when_its_client_leaves(server, held):
    held(LONG)
    before = left(server)
    large = ASK | {"metadata": {"x": "x" * LONG}}
    with connected(server, request(CHAT, large)):
        waiting = server.service.texts._threads[True]._work_queue
        while waiting.empty():
            pass  # it leaves once its text waits behind the one that is held
    while left(server) == before:
        pass  # the test's own timeout ends it otherwise
    assert server.service.limits._open == 0


def test_a_call_that_was_cancelled_is_never_made(llm):
    texts = Texts(lambda: Requests(llm.target, llm.tokenizer))
    called, release = list[str](), Event()

    async def run() -> None:
        first = asyncio.create_task(texts.run("a", 1, lambda _: release.wait(60)))
        calls = [texts.run(one, 1, lambda _: called.append("dropped")) for one in "abc"]
        others = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        release.set()
        await first
        await texts.run("d", 1, lambda _: called.append("kept"))

    asyncio.run(run())
    texts.close()
    assert called == ["kept"]


def test_a_call_that_was_cancelled_ends_at_its_next_step(llm):
    """A step may end between two images of a prompt."""
    texts = Texts(lambda: Requests(llm.target, llm.tokenizer))
    begun, ended, release = Event(), list[str](), Event()

    def work(_: Requests) -> None:
        begun.set()
        release.wait(60)
        try:
            check_wanted()
        except Abandoned:
            ended.append("abandoned")

    async def run() -> None:
        task = asyncio.create_task(texts.run("a", 1, work))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        release.set()
        await texts.run("b", 1, lambda _: ended.append("next"))

    asyncio.run(run())
    texts.close()
    assert ended == ["abandoned", "next"]


def test_tenants_take_turns(llm):
    """One that sends many texts has one of them in front of another tenant's."""
    texts, order = Texts(lambda: Requests(llm.target, llm.tokenizer)), list[str]()

    async def run() -> None:
        noted = {name: lambda _, name=name: order.append(name) for name in "ab"}
        await asyncio.gather(*(texts.run(name, 1, noted[name]) for name in "aaaaab"))

    asyncio.run(run())
    texts.close()
    assert order.index("b") <= 1


def test_texts_are_tokenized_beside_the_rounds(llm):
    """A stream goes on while the words of another request are read."""
    texts = dict(bad_words=("river", "water"), prediction="The river rose.")
    words = SamplingParams(**texts, max_tokens=3, seed=1)
    params = SamplingParams(max_tokens=30, seed=2)

    async def run() -> tuple[str, str]:
        async with AsyncLLM(llm) as engine:
            with llm.session._text_lock:  # held as by a tokenizer that takes long
                slow = asyncio.create_task(engine.generate("The river", words))
                ids = llm.tokenizer("The miller")["input_ids"]
                stream = engine.stream(ids, params)
                text = "".join([delta.text async for delta in stream])
                assert not slow.done()
            return text, (await slow)[0].text

    streamed, answered = asyncio.run(run())
    assert streamed == llm.generate("The miller", params)[0].text
    assert answered == llm.generate("The river", words)[0].text


class Counting:
    """A tokenizer that counts the characters it reads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.read = tokenizer, 0

    def __call__(self, text: str, **options: Any) -> Any:
        self.read += len(text)
        return self._tokenizer(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@pytest.mark.parametrize(
    ("text", "most"), [("lorem ipsum " * 20_000, 0), ("a" * 20_000, 9000)]
)
def test_a_text_that_cannot_fit_is_hardly_tokenized(unchecked, llm, text, most):
    tokenizer = Counting(llm.tokenizer)
    with pytest.raises(ContextExceeded, match=f"{len(text)} characters, and the"):
        Requests(llm.target, tokenizer).ids(text)  # pyright: ignore[reportArgumentType]
    assert tokenizer.read <= most
    messages = [user(text)]
    with pytest.raises(ContextExceeded, match="the context holds 1023"):
        llm.render(messages)


# ---- connections


def connected(server: Running, sent: bytes = b"") -> socket.socket:
    """Return a connection that has sent some bytes of a request."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(sent)
    return connection


def request(path: str, fields: dict[str, Any]) -> bytes:
    """Return a whole request, as it is sent."""
    body = json.dumps(fields)
    lines = (
        *(f"POST {path} HTTP/1.1", "host: localhost"),
        *("content-type: application/json", f"content-length: {len(body)}"),
    )
    return ("\r\n".join(lines) + f"\r\n\r\n{body}").encode()


def test_idle_connections_make_room(serving):
    with serving(connections=2) as server, ExitStack() as opened:
        idle = [opened.enter_context(connected(server)) for _ in range(60)]
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert len(server.server.server_state.connections) <= 2 + connections.PROBES + 1
        assert idle[0].recv(1) == b""  # the oldest was closed


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /health HTTP/1.1\r\nhost: loc", b"GET /health HTTP/1.1\r\n\r\nGET"],
)
def test_a_connection_that_does_not_ask_is_closed(serving, monkeypatch, sent):
    monkeypatch.setattr(connections, "ASK_SECONDS", 0.05)
    with serving() as server, connected(server, sent) as connection:
        while connection.recv(1000):
            pass  # the test's own timeout ends it otherwise


def test_a_client_that_does_not_read_is_left(serving, monkeypatch, llm):
    monkeypatch.setattr(connections, "UNREAD_SECONDS", 0.05)
    words = [llm.tokenizer.decode([token]) for token in range(llm.target.vocab)]
    longest = max(range(llm.target.vocab), key=lambda token: len(words[token]))
    # an answer of megabytes, more than the system takes over
    sent = request("/detokenize", {"tokens": [longest] * 400_000})
    close = {"connection": "close"}
    with serving() as server, connected(server, sent) as connection:
        assert connection.recv(8) == b"HTTP/1.1"
        while server.server.server_state.connections:
            answer = httpx.get(f"{server.url}/health", headers=close)
            assert answer.status_code == 200


def test_a_server_full_of_requests_says_that_it_is_alive(serving, llm):
    with serving(connections=2) as server, ExitStack() as opened:
        opened.enter_context(llm.session._lock)  # no round runs, so no answer ends
        for _ in range(2):
            opened.enter_context(connected(server, request(CHAT, ASK)))
        while server.service.limits._open < 2:
            assert httpx.get(f"{server.url}/health").status_code == 200
        refused = httpx.post(f"{server.url}{CHAT}", json=ASK)
        assert refused.status_code == 429
        said = refused.json()["error"]["message"]
        assert said.startswith("cannot read this request: 2 others are served")
        assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize(
    "headers", [{f"x-{number}": "a" for number in range(120)}, {"x-long": "a" * 40_000}]
)
def test_too_many_headers_are_431(server, headers):
    response = httpx.get(f"{server.url}/health", headers=headers)
    assert response.status_code == 431
    assert "the limits are 100 and 32768" in response.json()["error"]["message"]


# ---- the end


def test_requests_are_answered_until_balancers_notice(serving):
    with serving(leave=3600.0) as server:
        server.server.handle_exit(signal.SIGTERM, None)
        assert server.http.get("/ready").status_code == 503
        response = server.http.post(CHAT, json=ASK)
        # the next request of this client goes to another server
        assert (response.status_code, response.headers["connection"]) == (200, "close")
        server.server._refuses_at = 0.0
        with suppress(httpx.TransportError):
            while server.http.get("/health"):
                pass
        assert server.service.draining


def test_a_stream_cut_by_draining_ends_with_an_error(serving, llm):
    body = {"prompt": "The", "max_tokens": 1000, "stream": True, "ignore_eos": True}
    with (
        serving(drain=0.5) as server,
        server.http.stream("POST", "/v1/completions", json=body) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        with llm.session._lock:  # no round runs, so the answer cannot end by itself
            server.server.handle_exit(signal.SIGTERM, None)
            assert httpx.get(f"{server.url}/ready").status_code == 503
            assert httpx.get(f"{server.url}/health").status_code == 200
            assert httpx.post(f"{server.url}{CHAT}", json=ASK).status_code == 503
            rest = [line for line in lines if line]
    assert "the server stops" in rest[-2]
    assert rest[-1] == "data: [DONE]"


# ---- what is named


def test_no_path_of_a_request_is_opened(server):
    for budget in ("acceptance:/etc", "acceptance:/nowhere"):
        asked = ASK | {"speculative": {"budget": budget}}
        response = server.http.post(CHAT, json=asked)
        assert response.status_code == 400
        said = response.json()["error"]["message"]
        assert said.startswith(f"cannot use budget '{budget}' in a request: it names")


def test_answers_name_no_folder_of_the_server(server):
    """No body needs one; the error of a template is one that does."""
    folder = server.service.llm.target.name
    assert folder.startswith("/")
    image = {"type": "image", "image": "x"}
    file = {"type": "image_url", "image_url": "/etc/passwd"}
    method = {"max_tokens": 2, "speculative": {"method": "retrieval"}}
    for path, body in (
        (CHAT, ASK | {"messages": [user([image])]}),
        (CHAT, ASK | {"messages": [user([file])]}),
        ("/v1/completions", {"prompt": "x", "language": "fr"}),
        ("/v1/completions", {"prompt": "x"} | method),
    ):
        response = server.http.post(path, json=body)
        assert response.status_code == 400
        assert folder not in response.text
        assert "/foreword/" not in response.text


def test_an_error_quotes_no_whole_body(server):
    long = "x" * 100_000
    for wrong in (
        {"messages": [{"role": long, "content": "x"}]},
        {"model": long},
        {"tool_choice": long, "tools": [{}]},
    ):
        response = server.http.post(CHAT, json=ASK | wrong)
        assert response.status_code in (400, 404)
        assert len(response.content) < 3000


def test_metrics_have_one_label_for_all_ensembles_of_a_kind(serving):
    with serving() as server:
        for members in ("ngram, suffix", "suffix, ngram", "ngram, suffix, recycle"):
            server.post(CHAT, **ASK, speculative={"method": f"cascade({members})"})
        lines = server.http.get("/metrics").text.splitlines()
        labels = {line.partition('method="')[2].partition('"')[0] for line in lines}
    assert labels == {"", "cascade"}


def test_paths_become_names():
    paths = PrivatePaths("/data/models/mine")
    shown = paths.hidden(
        "cannot load '/data/models/mine': /data/models/draft/config.json. See "
        "/v1/models, /data/modelsx"
    )
    assert shown == "cannot load 'mine': config.json. See /v1/models, /data/modelsx"


def test_metrics_need_a_key_unless_public(serving):
    from foreword_server.settings import hashed

    for public, status in ((False, 401), (True, 200)):
        with serving(keys=hashed(["secret"]), public_metrics=public) as server:
            assert server.http.get("/metrics").status_code == status
            keyed = server.http.get("/metrics", headers={"x-api-key": "secret"})
            assert keyed.status_code == 200
            assert server.http.get("/health").status_code == 200
