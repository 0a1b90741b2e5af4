"""Traces reach a collector over OTLP, with what each request took and drafted."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

from foreword.errors import InvalidRequest
from foreword_server.telemetry.asked import asked
from serving import Quiet, running, started

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
WHERE = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Collector(ThreadingHTTPServer):
    """A server that keeps the spans that it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taking)
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []


class Taking(Quiet, BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        length = int(self.headers["content-length"])
        sent = ExportTraceServiceRequest.FromString(self.rfile.read(length))
        for one in sent.resource_spans:
            self.server.resources.append(values(one.resource))
            self.server.spans += [s for scope in one.scope_spans for s in scope.spans]
        self.send_response(200)
        self.end_headers()


@pytest.fixture
def collector(monkeypatch) -> Iterator[Collector]:
    server = Collector()
    with started(server) as url:
        monkeypatch.setenv(WHERE, url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        yield server


def values(of: Any) -> dict[str, Any]:
    """Return attributes by name."""
    found = {}
    for one in of.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, kind)
        if kind == "array_value":
            value = [item.string_value for item in value.values]
        found[one.key] = value
    return found


def test_request_is_a_span_below_that_of_its_client(llm, collector):
    with running(llm) as server:
        response = server.http.post(
            "/v1/chat/completions",
            json={
                "messages": [{"role": "user", "content": "Define the word river."}],
                "max_tokens": 24,
                "seed": 5,
                "temperature": 0,
            },
            headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"},
        )
        usage = response.json()["usage"]
        server.http.get("/metrics")
        assert server.http.post("/v1/completions", json={}).status_code == 400
    assert collector.resources[0]["service.name"] == "foreword"
    by_name = {span.name: span for span in collector.spans}
    assert set(by_name) == {
        "POST /v1/chat/completions",
        "POST /v1/completions",
        "queue",
        "prefill",
        "decode",
    }
    span = by_name["POST /v1/chat/completions"]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    found = values(span)
    assert found["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert found["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert found["gen_ai.request.seed"] == 5
    assert found["gen_ai.operation.name"] == "chat"
    assert found["foreword.request_id"] == "mine"
    assert found["foreword.draft_tokens"] > found["foreword.accepted_tokens"] > 0
    assert found["http.response.status_code"] == 200
    parts = [by_name[name] for name in ("queue", "prefill", "decode")]
    assert {part.parent_span_id for part in parts} == {span.span_id}
    for before, after in pairwise(parts):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    assert span.start_time_unix_nano <= parts[0].start_time_unix_nano
    assert parts[-1].end_time_unix_nano <= span.end_time_unix_nano
    assert "river" not in str(collector.spans)
    refused = by_name["POST /v1/completions"]
    assert values(refused)["http.response.status_code"] == 400


def test_requests_are_served_where_no_collector_runs(llm, monkeypatch):
    monkeypatch.setenv(WHERE, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with running(llm) as server:
        assert server.post("/v1/completions", prompt="Say hello.", max_tokens=4)


def test_nothing_is_traced_unless_asked(llm, monkeypatch):
    monkeypatch.delenv(WHERE, raising=False)
    with running(llm) as server:
        assert server.service.traces is None
        assert server.post("/v1/completions", prompt="Say hello.", max_tokens=4)


@pytest.mark.parametrize(
    ("environment", "answer"),
    [
        ({}, False),
        ({WHERE: ""}, False),
        ({WHERE: "http://a"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({WHERE: "http://a", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({WHERE: "http://a", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_environment_asks_for_traces(environment, answer):
    assert asked(environment) is answer


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "only otlp is supported"),
        ({WHERE: "a", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "only http/protobuf"),
    ],
)
def test_other_exporters_are_refused(environment, said):
    with pytest.raises(InvalidRequest, match=said):
        asked(environment)
