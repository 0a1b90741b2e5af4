"""Keys and values of an adapter are used again for this adapter alone."""

from dataclasses import replace

import pytest

from foreword import LLM, SamplingParams

LONG = (
    "Rivers carry water from the mountains to the sea, and rain brings it back. " * 12
)
GREEDY = SamplingParams(temperature=0, max_tokens=8)


def cached(llm: LLM, **named: str | None) -> int:
    (answer,) = llm.generate([LONG], replace(GREEDY, **named))
    return answer.stats.cached


@pytest.mark.parametrize("method", ["none", "eagle"])
def test_a_prefix_is_read_once_for_each_adapter(llm: LLM, method: str) -> None:
    asks = (None, "a", "b", None, "a", "b")
    tenant = f"prefixes of {method}"
    found = [cached(llm, adapter=name, tenant=tenant, method=method) for name in asks]
    assert found[:3] == [0, 0, 0]
    assert min(found[3:]) > 64


def test_the_text_after_a_kept_prefix_is_the_same(llm: LLM) -> None:
    asked = [
        replace(GREEDY, adapter=name, tenant=f"by {name}", max_tokens=24)
        for name in (None, "a", "b")
    ]
    first = [llm.generate([LONG], params)[0].tokens for params in asked]
    for is_kept in (False, True):
        shared = [replace(params, tenant="shared") for params in asked]
        again = [llm.generate([LONG], params)[0] for params in shared]
        assert [one.tokens for one in again] == first
        assert all((one.stats.cached > 0) == is_kept for one in again)


def test_a_tenant_cannot_be_named_like_an_adapter(llm: LLM) -> None:
    names = [("a", "t"), (None, "a\0t"), (None, "\0a\0t"), ("a", "\0t"), ("b", "t")]
    owners = {
        SamplingParams(adapter=adapter, tenant=tenant).owner
        for adapter, tenant in names
    }
    assert len(owners) == len(names)
    assert cached(llm, adapter="a", tenant="t") == 0
    assert cached(llm, tenant="a\0t") == 0
    assert cached(llm, adapter="a", tenant="t") > 64
