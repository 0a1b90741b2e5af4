"""A router in front of replicas: limits, keys, choice, files, and its end."""

import json
import os
import signal
from typing import Any

import pytest

from command import have_ended
from foreword.native.cpu import cores

CHAT = "/v1/chat/completions"


def ask(router: Any, text: str, **more: Any) -> Any:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}
    return router.http.post(CHAT, json=body)


@pytest.mark.slow
def test_conversation_returns_to_the_replica_that_read_it(router):
    router.all_ready()
    long = {name: f"{name} " * 400 for name in ("apples", "pears", "plums")}
    for text in long.values():
        ask(router, text)
    before = len(router.events("request"))
    cached = []
    for text in long.values():
        answer = ask(router, f"{text} and then").json()
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert all(count > 300 for count in cached)
    lines = router.wait(
        lambda: [
            one
            for one in router.events("request")[before:]
            if one.get("completion_tokens")
        ][2:]
    )
    assert lines[-1]["replica"] in ("0", "1")


def test_two_requests_at_once_run_on_two_replicas(router):
    router.all_ready()
    long = {"max_tokens": 900, "ignore_eos": True, "stream": True, "n": 8}
    body = {"messages": [{"role": "user", "content": "Go on."}], **long}
    with router.http.stream("POST", CHAT, json=body) as first:
        lines = first.iter_lines()
        next(lines)
        with router.http.stream("POST", CHAT, json=body) as second:
            others = second.iter_lines()
            next(others)
            running = [
                router.metric("foreword:answers_admitted", replica=name)
                for name in ("0", "1")
            ]
    assert running == [8, 8]


def test_errors_and_other_routes_are_those_of_a_replica(router):
    wrong = ask(router, "Hi", temperature=-1)
    assert wrong.status_code == 400
    assert "temperature" in wrong.json()["error"]["message"]
    assert router.http.get("/nothing").status_code == 404
    page = router.http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "content-security-policy" in page.headers
    counted = router.http.post("/tokenize", json={"prompt": "some words"})
    assert counted.json()["count"] > 0
    assert router.http.get("/ready").json() == {"status": "ready"}
    odd = router.http.get("/v1/models/a%3Fb").json()
    assert "'a?b'" in odd["error"]["message"]
    listed = router.http.get("/v1/models")
    head = router.http.head("/v1/models")
    assert head.headers["content-length"] == listed.headers["content-length"] != "0"
    assert head.content == b""
    many = {f"x-{number}": "y" for number in range(94)}
    assert router.http.get("/v1/models", headers=many).status_code == 200
    gone = router.http.post("/v1/messages", json={"model": "other", "messages": []})
    assert gone.json()["type"] == "error"


def test_hung_replica_costs_its_own_metrics(router):
    router.all_ready()
    router.kill("0", signal.SIGSTOP)
    try:
        text = router.http.get("/metrics").text
        # it was not waited for until it was killed
        assert not router.events("replica silent")
    finally:
        router.kill("0", signal.SIGCONT)
    running = [line for line in text.splitlines() if "num_requests_running{" in line]
    assert ['replica="1"' in line for line in running] == [True]
    assert 'process_open_fds{replica="router"}' in text


def test_router_counts_what_it_answers(router):
    name = "foreword:responses_total"
    codes = {code: router.metric(name, code=code) for code in ("400", "404", "405")}
    ask(router, "Hi", n=257)
    router.http.get("/nothing")
    router.http.get(CHAT)
    after = {code: router.metric(name, code=code) for code in codes}
    assert after == {code: count + 1 for code, count in codes.items()}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--models-memory", "1"), "'--models-memory' without '--models'"),
        (("--unload-after", "0"), "'--unload-after' without '--models'"),
        (("--detach",), "'--detach' without '--ray'"),
        (("--replica-cpus", "1"), "'--replica-cpus' without '--ray'"),
        (("--replica-gpus", "0"), "'--replica-gpus' without '--ray'"),
    ],
)
def test_options_that_would_be_ignored_are_refused(here, options, words):
    ended = here("serve", "--port", "0", *options)
    assert ended.returncode == 2
    assert words in " ".join(ended.stderr.split())


def test_queue_is_that_of_the_router(router):
    refused = ask(router, "Hi", n=257)
    assert refused.status_code == 400
    assert "256" in refused.json()["error"]["message"]


def test_keys_files_and_drain(routing, stranger, tmp_path):
    files = ("--files", str(tmp_path / "files"))
    with routing(*files, FOREWORD_API_KEYS="one,two") as router:
        client = stranger(router.http.base_url)
        client.try_everything()
        router.http.headers["authorization"] = "Bearer one"
        assert "finished_reason" not in router.http.get("/metrics").text
        assert client.generates()
        assert router.metric("vllm:request_success_total") == 1
        long = "The same long prompt of both callers. " * 40
        cached = []
        for key in ("one", "two", "one"):
            router.http.headers["authorization"] = f"Bearer {key}"
            usage = ask(router, long).json()["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert cached[:2] == [0, 0]
        assert cached[2] > 100
        check_batch(router)
        check_drain(router)


def check_batch(router: Any) -> None:
    """A batch of a key is answered by the replicas."""
    lines = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"{number} apples", "max_tokens": 8},
        }
        for number in range(6)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    sent = router.http.post(
        "/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}
    ).json()
    order = {"input_file_id": sent["id"], "endpoint": "/v1/completions"}
    order["completion_window"] = "24h"
    batch = router.http.post("/v1/batches", json=order).json()
    path = f"/v1/batches/{batch['id']}"
    states = ("completed", "failed")
    router.wait(lambda: router.http.get(path).json()["status"] in states)
    done = router.http.get(path).json()
    assert done["request_counts"] == {"total": 6, "completed": 6, "failed": 0}


@pytest.mark.slow
def test_replicas_end_with_a_killed_router(routing, tmp_path):
    with routing(TMPDIR=str(tmp_path)) as router:
        assert [*tmp_path.glob("foreword-*")]
        pids = [router.pid(name) for name in ("0", "1")]
        router.process.kill()
        router.process.wait()
        assert have_ended(pids)
    assert not [*tmp_path.glob("foreword-*")]


def check_drain(router: Any) -> None:
    """Ctrl-C lets an answer end, a second one cuts it; then replicas and router end."""
    body = {"prompt": "Go on.", "ignore_eos": True, "stream": True, "temperature": 2}
    pids = [router.pid(name) for name in ("0", "1")]
    path = "/v1/completions"
    with (
        router.http.stream("POST", path, json={**body, "max_tokens": 200}) as answer,
        router.http.stream(
            "POST", path, json={**body, "max_tokens": 900, "n": 16}
        ) as longer,
    ):
        lines, others = answer.iter_lines(), longer.iter_lines()
        next(lines)
        next(others)
        for pid in (*pids, router.process.pid):
            os.kill(pid, signal.SIGINT)
        assert [*lines][-2:] == ["data: [DONE]", ""]
        router.process.send_signal(signal.SIGINT)
        *_, error, _, done, _ = others
        assert "the server stops" in error
        assert done == "data: [DONE]"
    assert router.process.wait(60) == 130
    assert not router.events("replica ended")
    assert have_ended(pids)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--replicas", "none"), "neither a number from 1 on nor auto"),
        (("--replicas", "4000"), "there are"),
        (("--replicas", "2", "/no/such/model"), "/no/such/model"),
        pytest.param(
            ("--replicas", "2", "--replica-timeout", "1"),
            "was not ready in 1 s",
            marks=pytest.mark.skipif(cores() < 2, reason="a replica needs a core"),
        ),
    ],
)
def test_what_cannot_be_served_is_said(here, options, words):
    ended = here("serve", "--port", "0", "--device", "cpu", *options)
    assert ended.returncode in (1, 2)
    assert words in " ".join(ended.stderr.split())
