"""Requests of several adapters share rounds, and each has its adapter's text."""

from dataclasses import replace

import pytest
import torch

from foreword import LLM, Completion, SamplingParams
from foreword.model import Read
from foreword.types import TokenLogprob

TEXT = "One day the little girl who lived near the forest. One day the little girl"
WARM = SamplingParams(seed=3, max_tokens=24, ignore_eos=True, logprobs=1)
ASKED = [
    replace(params, adapter=adapter)
    for adapter in (None, "a", "b")
    for params in (replace(WARM, temperature=0), replace(WARM, n=2))
]
METHODS = tuple(
    (
        "lm ngram suffix eagle layers recycle medusa lookahead auto cascade(lm,suffix) "
        "dspark"
    ).split()
)


def tokens(found: list[Completion]) -> list[list[int]]:
    return [one.tokens for one in found]


def bits(found: list[Completion]) -> list[tuple[list[int], list[TokenLogprob]]]:
    """Return tokens and log-probabilities, which are to be equal bit for bit."""
    return [(one.tokens, one.logprobs or []) for one in found]


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[tuple[list[int], list[TokenLogprob]]]:
    """The texts of each request by itself, decoded plainly."""
    return [
        text
        for params in ASKED
        for text in bits(llm.generate([TEXT], replace(params, method="none")))
    ]


def test_adapters_write_other_texts(alone):
    assert len({tuple(text) for text, _ in alone}) == 9


@pytest.mark.sample(12)
@pytest.mark.parametrize("method", METHODS)
def test_text_in_a_batch_is_that_of_each_adapter_alone(llm, alone, method):
    asked = [replace(params, method=method) for params in ASKED]
    found = llm.generate([TEXT] * len(asked), asked)
    assert bits(found) == alone
    assert all(one.undrafted is None for one in found)
    for adapted in (found[:3], found[3:6], found[6:]):
        assert sum(one.stats.accepted for one in adapted) > 0


def test_requests_of_all_adapters_share_each_forward(llm, alone, monkeypatch):
    rounds: list[int] = []
    read = llm.target.backend.read

    def counting(reads: list[Read]) -> torch.Tensor:
        rounds.append(len(reads))
        return read(reads)

    monkeypatch.setattr(llm.target.backend, "read", counting)
    asked = [replace(params, method="none") for params in ASKED]
    assert bits(llm.generate([TEXT] * len(asked), asked)) == alone
    assert len(rounds) <= 25
    assert max(rounds) == 9


def test_bits_of_an_adapted_row_do_not_depend_on_the_batch(llm):
    target = llm.target
    text = list(range(300, 340))
    for one, adapter in enumerate(("a", "b", None, "a")):
        target.open(one, 128)
        if adapter is not None:
            target.give(one, target.adapters[adapter])
    alone = [target.read([Read(0, at, [text[at]])]) for at in range(40)]
    target.read([Read(3, 0, text[:7], keep=0), Read(1, 0, text[:3], keep=0)])
    beside = [Read(1, 3, text[:20], keep=0), Read(2, 0, text[:9], keep=0)]
    together = target.read([*beside, Read(3, 7, text[7:], keep=33)])
    for one in range(4):
        target.close(one)
    assert torch.equal(together, torch.cat(alone[7:]))


def test_a_sequence_opened_again_has_the_model_alone(llm):
    target = llm.target
    found: list[torch.Tensor] = []
    for adapter, closes in ((None, True), ("a", False), (None, True)):
        target.open(1, 128)
        if adapter is not None:
            target.give(1, target.adapters[adapter])
        found.append(target.read([Read(1, 0, [300, 301])]))
        if closes:
            target.close(1)
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


@pytest.mark.slow
def test_texts_that_give_way_go_on_with_their_adapter(llm):
    pool = llm.target.backend.pool
    assert pool is not None
    asked = [
        replace(WARM, seed=seed, max_tokens=60, method="ngram", adapter=adapter)
        for seed, adapter in enumerate(("a", "b", None, "a"))
    ]
    roomy = tokens(llm.generate([TEXT] * 4, asked))
    before = llm.engine.load.preemptions
    limit = pool.limit
    try:
        pool.limit = 256
        pool.prefixes.clear()
        assert tokens(llm.generate([TEXT] * 4, asked)) == roomy
    finally:
        pool.limit = limit
    assert llm.engine.load.preemptions > before


def test_prompts_are_scored_by_the_adapter(llm):
    by_base, by_a = (llm.score(TEXT, adapter=name) for name in (None, "a"))
    scored = replace(WARM, temperature=0, max_tokens=1, logprobs=0, adapter="a")
    (answer,) = llm.generate([TEXT], scored)
    assert answer.logprobs is not None
    longer = [*answer.prompt_tokens, *answer.tokens]
    assert llm.score(longer, adapter="a")[-1] == answer.logprobs[0]
    assert by_a != by_base
    assert llm.score(longer, adapter="a")[1:-1] == by_a[1:]


LONG = (
    "Rivers carry water from the mountains to the sea, and rain brings it back. " * 12
)
GREEDY = SamplingParams(temperature=0, max_tokens=8)


def cached(llm: LLM, **named: str | None) -> int:
    (answer,) = llm.generate([LONG], replace(GREEDY, **named))
    return answer.stats.cached


@pytest.mark.parametrize("method", ["none", "eagle"])
def test_a_prefix_is_read_once_for_each_adapter(llm, method):
    asks = (None, "a", "b", None, "a", "b")
    tenant = f"prefixes of {method}"
    found = [cached(llm, adapter=name, tenant=tenant, method=method) for name in asks]
    assert found[:3] == [0, 0, 0]
    assert min(found[3:]) > 64


@pytest.mark.slow
def test_the_text_after_a_kept_prefix_is_the_same(llm):
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


def test_a_tenant_cannot_be_named_like_an_adapter(llm):
    names = [("a", "t"), (None, "a\0t"), (None, "\0a\0t"), ("a", "\0t"), ("b", "t")]
    owners = {
        llm.session.prepare([1], SamplingParams(adapter=adapter, tenant=tenant))[
            0
        ].owner
        for adapter, tenant in names
    }
    assert len(owners) == len(names)
    assert cached(llm, adapter="a", tenant="t") == 0
    assert cached(llm, tenant="a\0t") == 0
    assert cached(llm, adapter="a", tenant="t") > 64
