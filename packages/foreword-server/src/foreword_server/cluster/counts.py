"""Counts of tokens and requests in Ray's own metrics, which its dashboard shows."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from ray.serve import metrics

COUNTED = {
    "vllm:prompt_tokens": "foreword_prompt_tokens",
    "vllm:generation_tokens": "foreword_generation_tokens",
    "vllm:request_success": "foreword_answers",
    "vllm:spec_decode_num_draft_tokens": "foreword_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "foreword_accepted_draft_tokens",
}
"""A counter at /metrics -> its name in Ray, which puts "ray_" before it."""
MODEL = "model_name"


class Counts:
    """Counters of a replica. Ray adds the tags of its deployment and replica."""

    def __init__(self) -> None:
        self._counters = {
            family: metrics.Counter(
                name, description=f"{family} of a replica.", tag_keys=(MODEL,)
            )
            for family, name in COUNTED.items()
        }
        self._seen: dict[Any, float] = {}

    def add(self, texts: Iterable[str]) -> None:
        """Count what Prometheus' texts have more than the last ones."""
        for family in chain(*map(text_string_to_metric_families, texts)):
            if counter := self._counters.get(family.name):
                for sample in family.samples:
                    if more := self._more(sample):
                        counter.inc(more, {MODEL: sample.labels[MODEL]})

    def _more(self, sample: Any) -> float:
        """Return what was counted since the last look."""
        key = (sample.name, *sorted(sample.labels.items()))
        before = self._seen.get(key, 0.0)
        self._seen[key] = value = sample.value
        if not sample.name.endswith("_total"):
            return 0.0
        # a process that was started again counts from zero
        return value - before if value >= before else value
