"""Whether the environment asks for traces; needs no package."""

import os
from collections.abc import Mapping

from foreword.cli.common import early
from foreword.errors import InvalidRequest

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EXPORTER = "OTEL_TRACES_EXPORTER"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OURS = "http/protobuf"


def asked(environment: Mapping[str, str]) -> bool:
    """Return whether traces are to be sent: an endpoint is set, or the exporter `otlp`.

    Raises InvalidRequest for an exporter or a protocol that there is not.
    """
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get(EXPORTER, "")
    if exporter == "none":
        return False
    if not exporter and not any(environment.get(name) for name in ENDPOINTS):
        return False
    if exporter not in ("", "otlp"):
        raise InvalidRequest(
            f"cannot send traces by {EXPORTER}={exporter}: only otlp is supported. Set "
            "it to otlp or none"
        )
    protocol = next(filter(None, map(environment.get, PROTOCOLS)), OURS)
    if protocol != OURS:
        raise InvalidRequest(
            f"cannot send traces by {protocol}: only {OURS} is supported. Set "
            f"{PROTOCOLS[1]}={OURS}, and the collector's port for it (4318)"
        )
    return True


def check_traces() -> None:
    """Check that traces can be sent, where the environment asks for them."""
    if asked(os.environ):
        modules = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
        early.extra("telemetry", *modules)
