"""Compilations of many tenants, in turns, ended by leaving and by time."""

import asyncio
import gc
import random
from concurrent.futures import CancelledError, Future
from functools import cache
from queue import Queue

import pytest

from foreword import LLM, AsyncLLM, SamplingParams
from foreword.errors import InvalidRequest
from foreword.structured import queue, worker
from foreword.structured.compiler import Grammars
from foreword.structured.forms import Vocabulary
from running import target, tokenizer

FORMS = [
    dict(
        json_schema={
            "type": "object",
            "properties": {"é": {"enum": [10, 11]}, "b": {"type": "string"}},
        }
    ),
    dict(json_object=True),
    dict(regex="(ab|c{2,3}|é)+x"),
    dict(grammar='root ::= "x" | "y" root'),
    dict(
        structural_tag={
            "type": "structural_tag",
            "format": {"type": "const_string", "value": "<call>"},
        }
    ),
]


@cache
def made() -> Grammars:
    return Grammars(tokenizer(), target().vocab, target().eos)


@cache
def near() -> Grammars:
    """Grammars that no other process compiles."""
    return Grammars(tokenizer(), target().vocab, target().eos)


def endless(number: int) -> str:
    """An expression of 12 kB that takes minutes to compile."""
    letters = random.Random(number).choices("abcdefghij", k=3000)
    return "".join(f"({letter}?)" for letter in letters)


def submitted(regex: str, tenant: str) -> Future:
    return made().submit(SamplingParams(regex=regex, tenant=tenant))


def small(tenant: str) -> None:
    """Wait for a compilation of this tenant, after all others were given up."""
    assert submitted(
        f"[a-{random.choice('klmnop')}]{{{random.randrange(10**6)}}}", tenant
    ).result(120)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: next(iter(form)))
def test_grammar_of_another_process_has_the_same_masks(form):
    params = SamplingParams(**form)
    far = made().submit(params).result(120)
    grammar = near().compiled(params)
    assert grammar is not None
    answers = [near().answer(grammar, params, 0), made().answer(far, params, 0)]
    rng, text = random.Random(1), []
    for _ in range(12):
        first, second = (answer.allowed(text, [[]])[0] for answer in answers)
        assert first.equal(second)
        assert len({answer.finished(text) for answer in answers}) == 1
        text = [*text, rng.choice(first.nonzero()[:, 0].tolist())]
        if text[-1] in target().eos or answers[0].finished(text):
            break


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (dict(regex="("), "The parenthesis is not closed"),
        (dict(regex="a{0}"), "only the empty one"),
        (dict(json_schema={"not": {}}), "'not' is not supported"),
    ],
)
def test_refusals_of_another_process_are_the_same(wanted, reason):
    with pytest.raises(InvalidRequest, match=reason) as far:
        made().submit(SamplingParams(**wanted)).result(120)
    with pytest.raises(InvalidRequest) as here:
        near().compiled(SamplingParams(**wanted))
    assert str(far.value) == str(here.value)


def test_form_is_compiled_again_by_a_caller_that_comes_as_it_ends():
    """Every caller gets an answer, also one that comes while others get theirs."""
    later: Queue[Future] = Queue()
    first = submitted("(", "again")
    first.add_done_callback(lambda _: later.put(submitted("(", "again")))
    for future in (first, later.get(timeout=120)):
        with pytest.raises(InvalidRequest, match="parenthesis is not closed"):
            future.result(120)


def test_tenant_has_one_place_and_what_is_left_ends():
    """Six slow expressions hold up no other tenant, nor their own without a client."""
    long = [submitted(endless(number), "one") for number in range(6)]
    small("other")
    waiting = made()._queue
    assert [job.tenant for job in waiting._running] == ["one"]
    assert len(waiting._waiting) == 5
    assert not any(future.done() for future in long)
    compiles = waiting._running[0].worker._process
    assert all(future.cancel() for future in long)
    assert compiles.wait(10) is not None, "leaving ends its process at once"
    assert waiting._waiting == []
    small("one")
    assert all(worker.alive for worker in waiting._workers)
    assert len(waiting._workers) <= queue.WORKERS


def test_shortest_form_is_first_and_equal_forms_are_compiled_once():
    long = [
        submitted(endless(7), "one"),
        submitted(endless(8), "one"),
        submitted(endless(8), "one"),
    ]
    short = submitted("[a-c]{3}", "one")
    assert len(made()._queue._waiting) + len(made()._queue._running) == 3
    assert long[1].cancel()
    assert len(made()._queue._waiting) + len(made()._queue._running) == 3, (
        "another caller waits for it"
    )
    assert long[0].cancel()
    assert short.result(120)
    assert not long[2].done()
    long[2].cancel()


@pytest.mark.slow
def test_compilation_that_takes_too_long_is_refused(monkeypatch):
    small("one")
    monkeypatch.setattr(queue, "LIMIT", 0.2)
    with pytest.raises(InvalidRequest, match=r"takes more than 0.2 seconds"):
        submitted(endless(9), "one").result(120)
    monkeypatch.undo()
    small("one")


def test_grammar_that_is_large_once_compiled_is_refused(monkeypatch):
    monkeypatch.setattr(worker, "LARGEST", 1000)
    vocabulary = Vocabulary([bytes([number]) for number in range(256)], spaced=False)
    assert worker._answer(vocabulary, "regex", "a")[0]
    assert worker._answer(vocabulary, "regex", "|".join(map(str, range(1000)))) == (
        False,
        "cannot follow this regex: compiled it is too large. Use one with fewer parts",
    )


def test_cancelled_request_ends_its_compilation_alone():
    llm = LLM(nodes=4)
    free = SamplingParams(temperature=0.8, seed=1, max_tokens=24, ignore_eos=True)
    wanted = SamplingParams(regex="[a-d]{4}", seed=1, max_tokens=24)

    async def work() -> list[str]:
        async with AsyncLLM(llm) as shared:
            leaving = asyncio.create_task(
                shared.generate("One day", SamplingParams(regex=endless(1)))
            )
            texts = [(await shared.generate("One day", free))[0].text]
            assert not leaving.done()
            leaving.cancel()
            with pytest.raises((CancelledError, asyncio.CancelledError)):
                await leaving
            return [*texts, (await shared.generate("One day", wanted))[0].text]

    assert asyncio.run(work()) == [
        llm.generate("One day", one)[0].text for one in (free, wanted)
    ]
    assert llm.session._requests._grammars._queue._waiting == []


def test_processes_end_with_the_grammars():
    """The last test, so that it starts no process of its own."""
    assert made().submit(SamplingParams(regex="a")).result(120)
    processes = [one._process for one in made()._queue._workers]
    assert len(processes) >= 1
    made.cache_clear()
    gc.collect()
    assert None not in [process.wait(60) for process in processes]
