"""The metrics of a server: its `/metrics` in Prometheus' text format, read once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foreword.errors import InvalidRequest, words
from foreword_lab.certify.remote.client import Broken, Server, Unsupported

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

NAMESPACE, OURS = "vllm:", "foreword:"
"""Prefixes of the names of metrics; our server has both."""
GENERATED = "vllm:generation_tokens_total"


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """All samples of one scrape."""

    samples: "Sequence[Sample]"

    @property
    def is_ours(self) -> bool:
        """Whether the server is Foreword's, not another with vLLM's names."""
        return any(one.name.startswith(OURS) for one in self.samples)

    @property
    def summary(self) -> str:
        """Counts in words."""
        tokens = self.total(GENERATED)
        answers = self.total("vllm:request_success_total")
        return f"{tokens:,.0f} tokens in {answers:,.0f} answers"

    def total(self, *names: str, **labels: str) -> float:
        """Return the sum of the samples of these names and labels, "" where a sample
        lacks one; 0 without any.
        """
        return sum(
            one.value
            for one in self.samples
            if one.name in names
            and all(one.labels.get(name, "") == text for name, text in labels.items())
        )

    def largest(self, *names: str) -> float:
        """Return the largest of the samples with one of the names, which are of several
        engines; 0 without any.
        """
        values = (one.value for one in self.samples if one.name in names)
        return max(values, default=0.0)

    def has(self, *names: str) -> bool:
        """Return whether there is a sample with one of the names."""
        return any(one.name in names for one in self.samples)

    def by(self, label: str, *names: str, **labels: str) -> dict[str, float]:
        """Return the sums by the value of a label, "" without it."""
        values = {
            one.labels.get(label, "") for one in self.samples if one.name in names
        }
        return {
            value: self.total(*names, **labels, **{label: value})
            for value in sorted(values)
        }


def scrape(url: str, key: str | None = None) -> tuple[str, ServerMetrics]:
    """Return the address of a server, and its metrics.

    Raises InvalidRequest if it cannot be reached, has no metrics of generation or has
    generated nothing yet.
    """
    server = Server.at(url.rstrip("/").removesuffix("/metrics"), key, model="")
    address = server.base.removesuffix("/v1") + "/metrics"
    try:
        text = server.text(address)
    except (Unsupported, Broken) as error:
        raise InvalidRequest(
            f"cannot read the metrics: {words(error)}. Check the address, and that the "
            "server has metrics"
        ) from error
    metrics = parsed(text, address)
    if not any(one.name.startswith(NAMESPACE) for one in metrics.samples):
        raise InvalidRequest(
            f"cannot use {address}: it has no metrics with names of vLLM. Give "
            "the address of a server of Foreword or vLLM"
        )
    if not metrics.total(GENERATED):
        raise InvalidRequest(
            f"cannot use {address}: it counts no answer yet. Send it some "
            "requests first, and wait for their end"
        )
    return address, metrics


def parsed(text: str, address: str) -> ServerMetrics:
    """Return the samples of Prometheus' text format, or raise InvalidRequest."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        samples = [
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]
    except (ValueError, LookupError, AttributeError) as error:
        raise InvalidRequest(
            f"cannot read {address}: it is not in the text format of Prometheus. Give "
            "the address of a server of Foreword or vLLM"
        ) from error
    return ServerMetrics(samples)
