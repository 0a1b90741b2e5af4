"""Encoder-decoders in the page pool: trees, joins, preemption change no token."""

from functools import cache

import pytest
import torch

import tiny_seq2seq
from foreword import LLM, SamplingParams
from foreword.model import Model
from foreword.types import Completion
from grids import slow_case
from running import of_length
from tiny_seq2seq import target

FAMILIES = ["t5", "bart", "m2m100", "marian", *tiny_seq2seq.in_c("t5", "umt5")]
LENGTHS = (1, 3, 8, 15, 16, 33, 62, 70)
"""Tokens of the sources: less than a page and more, in no order of length."""


@cache
def draft(name: str) -> Model:
    """A model that is often right, and else in its second choice."""
    own = tiny_seq2seq.build(name)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(4)
        for weight in own.parameters():
            weight += 0.06 * weight.std().nan_to_num() * torch.randn_like(weight)
    return Model(own, name)


def llm(target: Model, method: str, **options) -> LLM:
    draft_model = draft(target.name) if method == "lm" else None
    return LLM(
        target,
        tokenizer=tiny_seq2seq.tokenizer(target.name),
        method=method,
        draft=draft_model,
        nodes=8,
        **options,
    )


@cache
def sources() -> list[list[int]]:
    noise = torch.Generator().manual_seed(8)
    return [
        torch.randint(60, 310, (length,), generator=noise).tolist()
        for length in LENGTHS
    ]


@cache
def asked(trace: bool = False) -> list[SamplingParams]:
    """Greedy and sampled, of several lengths: later ones join running ones."""
    return [
        of_length(
            12 + 6 * (number % 4), float(number % 3 > 0), seed=number, trace=trace
        )
        for number in range(len(LENGTHS))
    ]


@cache
def plain(name: str) -> list[list[int]]:
    """What each request writes alone, without drafts."""
    one = llm(target(name), "none")
    return [
        one.generate(s, [a])[0].tokens for s, a in zip(sources(), asked(), strict=True)
    ]


def branches(answers: list[Completion]) -> int:
    """Return how many accepted draft tokens were not their parent's first choice."""
    return sum(
        any(other.parent == one.draft[node].parent for other in one.draft[:node])
        for answer in answers
        for one in answer.rounds
        for node in one.accepted
    )


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", FAMILIES)
def test_trees_in_ragged_batches_change_no_token(name):
    answers = llm(target(name), "lm", slots=3).generate(sources(), asked(trace=True))
    assert [answer.tokens for answer in answers] == plain(name)
    assert sum(answer.stats.accepted for answer in answers) > 40
    assert branches(answers) > 3
    assert max(one.sequences for answer in answers for one in answer.rounds) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bart", "t5", *tiny_seq2seq.in_c("t5")])
def test_preempted_sequences_write_the_same_and_free_their_sources(name):
    long = [of_length(72, 0.5, seed=seed) for seed in range(3)]
    alone = [
        llm(target(name), "none").generate(s, [a])[0].tokens
        for s, a in zip(sources()[:3], long, strict=True)
    ]
    one = llm(target(name), "lm", cache_tokens=9 * 64)
    pool = target(name).backend.pool
    answers = one.generate(sources()[:3], long)
    assert one.engine.load.preemptions > 0
    assert [answer.tokens for answer in answers] == alone
    assert sum(answer.stats.accepted for answer in answers) > 40
    assert pool.held == 0
    stream = one.stream(sources()[-1], asked()[-1])
    next(stream)
    assert pool.held == (2 + 1) * 64, "a source of 70 tokens, and the text"
    stream.close()
    assert pool.held == 0


@pytest.mark.parametrize("name", ["bart", slow_case("m2m100")])
def test_bits_do_not_depend_on_the_batch_in_bfloat16(name):
    own = Model(tiny_seq2seq.build(name).bfloat16(), name)
    assert own.capability.backend == "pool"
    alone = [
        llm(own, "none").generate(s, [a])[0].tokens
        for s, a in zip(sources(), asked(), strict=True)
    ]
    answers = llm(own, "lm").generate(sources(), asked())
    assert [answer.tokens for answer in answers] == alone
    assert sum(answer.stats.accepted for answer in answers) > 40


def test_sequence_waits_for_room_for_its_source():
    # 2 pages each, as many for the text
    one, long = llm(target("bart"), "none", cache_tokens=6 * 64), sources()[-1]
    answers = one.generate(
        [long, long], SamplingParams(max_tokens=12, ignore_eos=True, trace=True)
    )
    assert {each.sequences for answer in answers for each in answer.rounds} == {1}
    assert one.engine.load.preemptions == 0
