"""Traces of requests for OpenTelemetry, where its environment variables ask for them.

A request is a span with the attributes that OpenTelemetry names for HTTP and generative
models, below the client's span if a `traceparent` header names one. An answer adds
spans for its queue, its prompt and its tokens. No span holds a prompt or an answer.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter_ns, time_ns
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from starlette.types import Scope

from foreword import __version__
from foreword_server.answer import Answer, Choice

SERVICE = "foreword"
TRACED = "/v1/"
"""Beginning of the routes that are traced."""
PARTS = ("queue", "prefill", "decode")
OFFSET = time_ns() - perf_counter_ns()
"""Nanoseconds from the zero of perf_counter to the epoch."""


class Traces:
    """The spans of requests, sent to a collector in a thread of their own."""

    def __init__(self, model: str) -> None:
        """`model`: name that clients use.

        Where to send, sampling and attributes of the resource come from the environment
        (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, …).
        """
        named = {SERVICE_NAME: SERVICE}
        if "OTEL_SERVICE_NAME" in os.environ:
            named = {}
        self._model = model
        resource = Resource.create(named)
        exporter = BatchSpanProcessor(OTLPSpanExporter())
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(exporter)
        self._tracer = self._provider.get_tracer(SERVICE, __version__)

    def begin(self, scope: Scope, headers: Mapping[str, str]) -> "Traced | None":
        """Return the span of a request; None where its path is not traced."""
        method, decision = scope["method"], scope["state"]["decision"]
        route = decision.route
        if not route.path.startswith(TRACED):
            return None
        attributes = {
            "http.request.method": method,
            "http.route": route.path,
            "url.path": decision.path,
            "foreword.request_id": scope["state"]["request_id"],
        }
        if route.operation:
            attributes |= {
                "gen_ai.operation.name": route.operation,
                "gen_ai.provider.name": SERVICE,
                "gen_ai.request.model": self._model,
            }
        span = self._tracer.start_span(
            f"{method} {route.path}",
            context=extract(headers),
            kind=SpanKind.SERVER,
            attributes=attributes,
        )
        return Traced(self._tracer, span)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


@dataclass(frozen=True, slots=True)
class Traced:
    """The span of one request."""

    tracer: Tracer
    span: Span

    def answered(self, answer: Answer) -> None:
        """Add what an answer took and drafted, and spans of its parts."""
        params = answer.call.params
        choices = answer.choices
        stats = [one.request.stats for one in choices]
        attributes: dict[str, Any] = {
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.response.finish_reasons": [
                one.finish_reason if one.ended else "abort" for one in choices
            ],
            "gen_ai.usage.input_tokens": answer.prompt_tokens,
            "gen_ai.usage.output_tokens": answer.completion_tokens,
            "foreword.method": answer.call.method,
            "foreword.draft_tokens": sum(one.drafted for one in stats),
            "foreword.accepted_tokens": sum(one.accepted for one in stats),
            "foreword.rounds": sum(one.rounds for one in stats),
        }
        if params.seed is not None:
            attributes["gen_ai.request.seed"] = params.seed
        self.span.set_attributes(attributes)
        for choice in choices:
            self._parts(answer.arrived, choice)

    def end(self, status: int) -> None:
        """End the span with the status of the response."""
        self.span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self.span.set_status(StatusCode.ERROR)
        self.span.end()

    def _parts(self, arrived: float, choice: Choice) -> None:
        moments = choice.request.moments
        times = (arrived, moments.begun, moments.first, moments.last)
        for name, (start, stop) in zip(PARTS, pairwise(times), strict=True):
            if start is None or stop is None:
                return
            part = self.tracer.start_span(
                name,
                context=set_span_in_context(self.span),
                start_time=_moment(start),
                attributes={"foreword.choice": choice.index},
            )
            part.end(_moment(stop))


def _moment(counted: float) -> int:
    """Return nanoseconds since the epoch of a time of perf_counter."""
    return OFFSET + int(1e9 * counted)
