"""Keys, hosts, limits, request ids, health, metrics: around generation."""

import json
import socket
from functools import partial

import pytest
from transformers import PreTrainedTokenizerBase

import owned
from asking import user
from foreword import InvalidRequest
from foreword.chats.sanitize import MARK
from foreword_server.settings import Settings, hashed

CHAT = "/v1/chat/completions"
ASK = {"messages": [user("Define the word gasolene.")], "max_tokens": 4}


def test_a_key_is_needed_where_keys_are_set(serving):
    with serving(keys=hashed(["secret", "other"])) as server:
        for headers, status in (
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            ({"authorization": "Basic secret"}, 401),
            ({"authorization": "Bearer secret"}, 200),
            ({"x-api-key": "other"}, 200),
        ):
            response = server.http.post(CHAT, json=ASK, headers=headers)
            assert response.status_code == status, headers
        assert server.http.get("/v1/models").status_code == 401
        refused = server.http.post("/v1/messages", json=ASK)
        assert refused.json()["error"]["type"] == "authentication_error"
        assert refused.json()["type"] == "error"
        for path in ("/", "/page/main.js", "/health", "/ready", "/version"):
            assert server.http.get(path).status_code == 200


def test_beyond_loopback_a_key_is_needed_from_the_start():
    with pytest.raises(InvalidRequest, match="API key"):
        Settings(host="0.0.0.0")
    assert Settings(host="0.0.0.0", keys=hashed(["k"])).keys == hashed(["k"])
    with pytest.raises(InvalidRequest, match="API key 2"):
        hashed(["good", "two words"])


def test_other_host_names_are_refused_on_loopback(server, serving):
    refused = server.http.post(CHAT, json=ASK, headers={"host": "evil.example"})
    assert refused.status_code == 403
    with serving(hosts=("tunnel.example",)) as other:
        allowed = other.http.post(CHAT, json=ASK, headers={"host": "tunnel.example"})
        assert allowed.status_code == 200


def test_a_page_of_another_origin_gets_no_permission(server, serving):
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    refused = server.http.options(CHAT, headers=asked)
    assert "access-control-allow-origin" not in refused.headers
    headers = {"content-type": "text/plain"}
    plain = server.http.post(CHAT, content='{"messages":[]}', headers=headers)
    assert plain.status_code == 400
    with serving(origins=("https://good.example",)) as other:
        asked["origin"] = "https://good.example"
        good = other.http.options(CHAT, headers=asked)
        assert good.headers["access-control-allow-origin"] == "https://good.example"


def test_a_rate_is_kept_for_each_key(serving):
    with serving(keys=hashed(["a", "b"]), rate=2) as server:
        ask = partial(server.http.post, "/tokenize", json={"prompt": "x"})
        for key in ("a", "b"):
            codes = [ask(headers={"x-api-key": key}).status_code for _ in range(3)]
            assert codes == [200, 200, 429]
        refused = ask(headers={"x-api-key": "a"})
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"


def test_a_full_queue_is_429(serving):
    with serving(queue=2) as server:
        with server.service.limits.place("", 2):
            refused = server.http.post(CHAT, json=ASK)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "overloaded"
        assert server.http.post(CHAT, json=ASK).status_code == 200
        assert server.http.post(CHAT, json={**ASK, "n": 3}).status_code == 400


def test_answers_of_one_key_are_limited(serving):
    with serving(concurrent=2) as server, server.service.limits.place("", 1):
        assert server.http.post(CHAT, json={**ASK, "n": 2}).status_code == 429
        assert server.http.post(CHAT, json=ASK).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_places(serving, stream):
    """It leaves long before the end: the pages are free, the sequences aborted."""
    body = dict(prompt="The", max_tokens=1000, n=8, stream=stream, ignore_eos=True)
    content = json.dumps(body).encode()
    with serving() as server:
        limits, engine = server.service.limits, server.service.llm.engine
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as other:
            other.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
                b"content-type: application/json\r\n"
                b"content-length: %d\r\n\r\n" % len(content) + content
            )
            while engine.load.running + engine.load.waiting < body["n"]:
                server.http.get("/health")
            if stream:
                assert other.recv(1)
        # the test's own timeout ends it otherwise
        while limits.active or not engine.idle:
            server.http.get("/health")
        text = server.http.get("/metrics").text
        assert (
            'vllm:request_success_total{engine="0",finished_reason="abort",'
            'model_name="foreword-family"} 8.0' in text
        )
        assert server.http.post(CHAT, json=ASK).status_code == 200


def test_a_large_body_is_413(serving):
    with serving(body=2000) as server:
        long = {"messages": [user("x" * 4000)]}
        response = server.http.post(CHAT, json=long)
        assert response.status_code == 413
        assert response.json()["error"]["type"] == "invalid_request_error"
        pieces = (b'{"messages": "', *(b"x" * 500 for _ in range(9)), b'"}')
        headers = {"content-type": "application/json"}
        answer = server.http.post(CHAT, content=iter(pieces), headers=headers)
        assert answer.status_code == 413
        assert server.http.post(CHAT, json=ASK).status_code == 200


def test_request_ids_are_taken_over_or_made(server):
    assert (
        server.http.get("/health", headers={"x-request-id": "mine-1"}).headers[
            "x-request-id"
        ]
        == "mine-1"
    )
    made = server.http.get("/health", headers={"x-request-id": "two words"}).headers[
        "x-request-id"
    ]
    assert made.startswith("req_")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "JSON"),
        ("[]", "body"),
        ("{}", "messages"),
        ('{"messages": "x"}', "messages"),
    ],
)
def test_a_body_that_cannot_be_read_is_400(server, content, named):
    response = server.http.post(
        CHAT, content=content, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert named in response.json()["error"]["message"]


def test_unknown_paths_and_methods_have_the_shape_of_errors(server):
    assert server.http.get("/v1/nothing").status_code == 404
    assert "no such path" in server.http.get("/v1/nothing").json()["error"]["message"]
    assert server.http.get(CHAT).status_code == 405


def test_tokens_go_and_come_back(server):
    tokens = server.post("/tokenize", prompt="The river rose.", return_token_strs=True)
    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
    text = server.post("/detokenize", tokens=tokens["tokens"])["prompt"]
    assert text == "The river rose."
    chat = server.post("/tokenize", messages=ASK["messages"])
    assert chat["tokens"] == server.service.llm.render(ASK["messages"])
    assert server.http.post("/detokenize", json={"tokens": [10**6]}).status_code == 400
    assert server.http.post("/tokenize", json={}).status_code == 400


@pytest.mark.skipif(
    not hasattr(PreTrainedTokenizerBase, MARK),
    reason="this version of transformers marks no control tokens",
)
def test_control_tokens_of_clients_are_plain_text_with_sanitize(server, serving):
    end = server.service.tokenizer.eos_token
    messages = [user(f"a{end}b")]
    given = server.post("/tokenize", messages=messages)["tokens"]
    with serving(sanitize=True) as clean:
        found = clean.post("/tokenize", messages=messages)["tokens"]
        asked = clean.post(CHAT, messages=messages, max_tokens=1)
        same = clean.post("/tokenize", messages=ASK["messages"])
    token = server.service.tokenizer.eos_token_id
    assert given.count(token) - found.count(token) == 1
    assert asked["usage"]["prompt_tokens"] == len(found) > len(given)
    assert same == server.post("/tokenize", messages=ASK["messages"])


def test_metrics_count_what_was_generated(serving):
    with serving() as server:
        ask = dict(messages=owned.CHAT, max_tokens=40, temperature=0)
        whole = server.post(CHAT, **ask, speculative={"nodes": 4})
        server.post(CHAT, **ASK, model="foreword-family:none")
        text = server.http.get("/metrics").text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    values = dict(line.rsplit(" ", 1) for line in lines)

    def value(name: str, **labels: str) -> float:
        labels |= {"engine": "0", "model_name": "foreword-family"}
        written = [f'{key}="{one}"' for key, one in sorted(labels.items())]
        return float(values[f"{name}{{{','.join(written)}}}"])

    counts = whole["metrics"]["speculative_decoding"]
    for kind, count in (("draft", "draft"), ("accepted", "accepted_draft")):
        total = value(f"vllm:spec_decode_num_{kind}_tokens_total", method="lm")
        assert total == counts[f"num_{count}_tokens"] > 0
    assert value("foreword:answers_without_drafts_total", reason="method") == 1
    assert value("vllm:num_requests_running") == value("vllm:num_requests_waiting") == 0
    assert value("vllm:time_to_first_token_seconds_count") == 2


def test_transformers_chat_finds_its_model(server):
    response = server.http.post("/load_model", json={"model": "foreword-family"})
    assert '"status":"ready"' in response.text
    assert server.http.post("/load_model", json={"model": "other"}).status_code == 404
