"""Requests at the edges, beside ordinary ones: no text changes, none fails."""

import copy
from functools import cache

import pytest

import running
from foreword.draft import METHODS
from foreword.draft.base import Drafter
from foreword.draft.lm import LanguageModelDrafter
from foreword.model import Model
from foreword.native.cpu import fast_bfloat16
from foreword.types import SamplingParams
from grids import slow_case

DTYPE = "bfloat16" if fast_bfloat16() else "float32"
DRAFTERS = tuple(name for name in METHODS if name != "none")
QUICK = ("suffix",)
"""The others take long together; `lm` reads less than the prompts in the last test."""
SHORT = 96
"""Tokens that the draft model of `short` reads."""


def settings(seed: int, heat: float, length: int) -> SamplingParams:
    return running.of_length(length, heat, seed=seed)


@cache
def asked(heat: float) -> list[running.Case]:
    """The edges; then four ordinary requests."""
    context, long = running.target(DTYPE).context, running.prompts()[3] * 60
    special = tuple(running.tokenizer().all_special_ids)
    edges = [
        (long[: context - 12], 12),
        (long[:SHORT], 12),
        (long[: SHORT - 3], 12),
        (long[: context - 1], 1),
        (running.prompts()[1][:1], 12),
        (special[:1], 12),
        (special * 4, 12),
        (running.prompts()[2], 1),
        (running.prompts()[2] * 2, 2),
    ]
    ordinary = [(prompt, 20) for prompt in running.prompts()[:4]]
    return [
        running.Case(prompt, settings(at, heat, length))
        for at, (prompt, length) in enumerate([*edges, *ordinary])
    ]


@cache
def wanted(heat: float) -> list[running.Answer]:
    return running.finish(running.engine(running.target(DTYPE)), asked(heat))


def short() -> Drafter:
    model: Model = copy.copy(running.draft(DTYPE))
    model.context = SHORT
    return LanguageModelDrafter(model)


def check(own: Drafter, rule: str, heat: float, nodes: int, chunk: int) -> None:
    loop = running.engine(
        running.target(DTYPE), own, nodes, rule=rule, chunk=chunk, slots=6
    )
    requests = asked(heat)
    aborted = [
        running.Case(requests[at].prompt, settings(90 + at, heat, 12)).request(
            running.target(DTYPE).eos
        )
        for at in (0, 4, 9)
    ]
    for sequence in aborted:
        loop.add(sequence)
    for turn in range(3):
        loop.step()
        loop.abort(aborted[turn])
    got = running.finish(loop, requests)
    assert loop.failed is None
    assert {answer.request.undrafted for answer in got} == {None}
    assert [len(answer.tokens) for answer in got] == [
        one.params.max_tokens for one in requests
    ]
    if rule == "match":
        assert running.outputs(got) == running.outputs(wanted(heat))
    assert sum(answer.request.stats.accepted for answer in got[-4:]) > 0


SWEEP = [
    pytest.param(
        name,
        rule,
        heat,
        nodes,
        chunk,
        marks=()
        if name in QUICK and nodes == 64 and rule == "match"
        else pytest.mark.slow,
    )
    for name in DRAFTERS
    for rule, heat, nodes, chunk in (
        ("match", 1.3, 64, 512),
        ("match", 0.0, 3, 16),
        ("block", 1.3, 64, 16),
        ("block", 0.0, 64, 512),
    )
]


@pytest.mark.parametrize(("name", "rule", "heat", "nodes", "chunk"), SWEEP)
def test_edges_in_one_batch_are_drafted_and_keep_their_text(
    name, rule, heat, nodes, chunk
):
    check(running.drafter(name, DTYPE), rule, heat, nodes, chunk)


@pytest.mark.parametrize(
    ("rule", "heat"), [("match", 1.3), slow_case("match", 0.0), slow_case("block", 1.3)]
)
def test_draft_model_that_reads_less_than_the_prompts(rule, heat):
    check(short(), rule, heat, 64, 512)


def test_special_tokens_alone_are_no_text():
    ids = list(asked(0.0)[6].prompt)
    assert not running.tokenizer().decode(ids, skip_special_tokens=True)
