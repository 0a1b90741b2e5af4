"""An LLM for asyncio: the same texts, streams side by side, cancellation."""

import asyncio
import gc
from functools import cache

import pytest

from asking import user
from foreword import LLM, AsyncLLM, SamplingParams
from foreword.errors import InvalidRequest
from running import DTYPE, of_length

TEXTS = ("one two three one two three one two", "The capital of France is")
TEXTS += ("One day", "A fish")
LONG = of_length(40, 0.8, seed=3)


@cache
def llm() -> LLM:
    return LLM(dtype=DTYPE, nodes=3)


@cache
def alone(text: str, seed: int = 3) -> str:
    params = of_length(40, 0.8, seed=seed, method="none")
    return llm().generate(text, params)[0].text


def run(work):
    """Run a coroutine on a served LLM; afterwards nothing of it is left."""

    async def served():
        async with AsyncLLM(llm()) as serving:
            return await asyncio.wait_for(work(serving), 120)

    found = asyncio.run(served())
    assert llm().engine.idle
    assert llm().session._running == {}
    return found


def test_prompts_are_completed_as_the_llm_completes_them():
    got = run(lambda serving: serving.generate(list(TEXTS), LONG))
    assert [one.text for one in got] == [alone(text) for text in TEXTS]
    assert sum(one.stats.accepted for one in got) > 0


@pytest.mark.slow
def test_several_answers_to_one_prompt():
    params = of_length(40, 0.8, seed=3, n=3)
    got = run(lambda serving: serving.generate(TEXTS[0], params))
    assert [one.text for one in got] == [alone(TEXTS[0], one.seed) for one in got]


def test_streams_of_many_tasks_run_side_by_side():
    async def work(serving):
        order = []

        async def read(text):
            said = ""
            async for delta in serving.stream(text, LONG):
                order.append(text)
                said += delta.text
            return said

        return await asyncio.gather(*map(read, TEXTS)), order

    texts, order = run(work)
    assert texts == [alone(text) for text in TEXTS]
    first_end = min(len(order) - order[::-1].index(text) for text in TEXTS)
    assert all(text in order[:first_end] for text in TEXTS), (
        "none waits until another has ended"
    )


def test_leaving_a_stream_ends_its_request_only():
    async def work(serving):
        async def leave():
            stream = serving.stream(TEXTS[1], LONG)
            delta = await anext(stream)
            await stream.aclose()
            return delta.text

        left, whole = await asyncio.gather(leave(), serving.generate(TEXTS[0], LONG))
        return left, whole[0].text

    left, whole = run(work)
    assert alone(TEXTS[1]).startswith(left)
    assert whole == alone(TEXTS[0])


def test_a_cancelled_task_gives_its_request_up():
    async def work(serving):
        task = asyncio.create_task(serving.generate(TEXTS[0], LONG))
        await anext(serving.stream(TEXTS[1], LONG))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await serving.generate(TEXTS[2], LONG))[0].text

    assert run(work) == alone(TEXTS[2])
    gc.collect()


def test_a_named_stream_can_be_aborted():
    async def work(serving):
        said = ""
        async for delta in serving.stream(TEXTS[0], LONG, id="mine"):
            if not said:
                assert serving.abort("mine")
            said += delta.text
        assert not serving.abort("mine")
        return said

    said = run(work)
    assert alone(TEXTS[0]).startswith(said)
    assert 0 < len(said) < len(alone(TEXTS[0]))


def test_a_name_is_taken_while_its_stream_runs():
    async def work(serving):
        first = serving.stream(TEXTS[0], LONG, id="mine")
        await anext(first)
        with pytest.raises(InvalidRequest, match="cannot start a request named 'mine'"):
            await anext(serving.stream(TEXTS[1], LONG, id="mine"))
        await first.aclose()
        return "".join(
            [delta.text async for delta in serving.stream(TEXTS[1], LONG, id="mine")]
        )

    assert run(work) == alone(TEXTS[1])


def test_what_cannot_be_served_is_refused_and_others_go_on():
    async def work(serving):
        good = asyncio.create_task(serving.generate(TEXTS[0], LONG))
        with pytest.raises(InvalidRequest, match="the prompt is empty"):
            await serving.generate(["fine", ""], LONG)
        with pytest.raises(InvalidRequest, match="method"):
            await anext(serving.stream("fine", SamplingParams(method="layer cake")))
        with pytest.raises(InvalidRequest, match="cannot stream n=2"):
            await anext(serving.stream("fine", SamplingParams(n=2)))
        with pytest.raises(InvalidRequest, match="2 prompts need"):
            await serving.generate(["one", "two"], [LONG])
        return (await good)[0].text

    assert run(work) == alone(TEXTS[0])


def test_request_that_fails_on_way_raises_where_it_is_awaited():
    def broken(tokens, scores):
        if tokens.shape[1] > 20:
            raise RuntimeError("this processor is broken")
        return scores

    async def work(serving):
        good = asyncio.create_task(serving.generate(TEXTS[0], LONG))
        bad = SamplingParams(
            max_tokens=40, processors=(broken,), ignore_eos=True, seed=1
        )
        with pytest.raises(RuntimeError, match="this processor is broken"):
            await serving.generate(TEXTS[1], bad)
        return (await good)[0].text

    assert run(work) == alone(TEXTS[0])


def test_a_conversation_is_answered():
    messages = [user("Name a colour.")]
    params = SamplingParams(temperature=0, max_tokens=16)
    got = run(lambda serving: serving.chat(messages, params))
    assert got.text == llm().chat(messages, params).text


def test_after_closing_nothing_can_be_asked():
    async def work():
        serving = AsyncLLM(llm())
        stream = serving.stream(TEXTS[0], LONG)
        await anext(stream)
        await serving.close()
        rest = [delta async for delta in stream]
        with pytest.raises(InvalidRequest, match="this AsyncLLM was closed"):
            await serving.generate(TEXTS[0], LONG)
        return rest

    asyncio.run(work())
    assert llm().engine.idle
    assert llm().generate(TEXTS[0], LONG)[0].text == alone(TEXTS[0])


def test_the_loop_turns_while_rounds_run():
    """Callbacks of the loop run between the deltas: it never waits for a forward."""

    async def work(serving):
        turns, done = 0, asyncio.Event()

        async def tick():
            nonlocal turns
            while not done.is_set():
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        deltas = [delta async for delta in serving.stream(TEXTS[0], LONG)]
        done.set()
        await ticking
        return turns, len(deltas)

    turns, rounds = run(work)
    assert turns > 20 * rounds


CHATS = [[user("Name a river.")], [user("Name a fish.")]]
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
SHORT = SamplingParams(temperature=0, max_tokens=12)


def test_chats_are_answered_as_the_llm_answers_them():
    one, several = llm().chat(CHATS[0], SHORT, TOOLS), llm().chat(CHATS, SHORT)

    async def work(serving):
        pieces = [delta.text async for delta in serving.stream_chat(CHATS[0], SHORT)]
        assert serving.tokenizer is llm().tokenizer
        assert await serving.render(CHATS[0], TOOLS) == llm().render(CHATS[0], TOOLS)
        return (
            await serving.chat(CHATS[0], SHORT, TOOLS),
            await serving.chat(CHATS, SHORT),
            "".join(pieces),
        )

    with_tools, both, streamed = run(work)
    assert with_tools.tokens == one.tokens
    assert one.prompt_tokens == llm().render(CHATS[0], TOOLS)
    assert [answer.tokens for answer in both] == [answer.tokens for answer in several]
    assert several[0].text == llm().chat(CHATS[0], SHORT).text == streamed
    assert sum(answer.stats.accepted for answer in both) > 0
