"""Requests of every API that leave sampling out have that of the model's owner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import starter
from foreword import LLM, SamplingParams
from owned import CHAT, TALE, VALUES, owned
from serving import Running, running

START, LENGTH = "Once upon a time there was", 40
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/completions": {"prompt": START},
    "/v1/responses": {"input": TALE},
    "/v1/messages": {"messages": CHAT},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = owned(tmp_path_factory.mktemp("owned") / "model")
    with LLM(folder, draft=starter.draft(), nodes=4) as llm, running(llm) as server:
        yield server


def answer(served: Running, path: str, **more: object) -> Any:
    length = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    return served.post(path, **BODIES[path], seed=5, **{length: LENGTH}, **more)


def text(answer: Any) -> str:
    if "output" in answer:
        answer = answer["output"][-1]
    (part,) = answer.get("choices") or answer["content"]
    return part["text"] if "text" in part else part["message"]["content"]


def expected(served: Running, path: str, **more: Any) -> str:
    llm = served.service.llm
    prompt = START if path == "/v1/completions" else llm.render(CHAT)
    params = SamplingParams(**{**VALUES, **more}, seed=5, max_tokens=LENGTH)
    (one,) = llm.generate([prompt], params)
    assert one.stats.accepted > 0
    return one.text


@pytest.mark.parametrize("path", BODIES)
def test_left_out_sampling_is_that_of_the_owner(served: Running, path: str) -> None:
    assert text(answer(served, path)) == expected(served, path)
    given = {name: VALUES[name] for name in ("temperature", "top_p")}
    assert text(answer(served, path, **given)) == expected(served, path)
    cold = expected(served, path, temperature=0.2)
    assert text(answer(served, path, temperature=0.2)) == cold


def test_a_response_and_the_page_name_the_sampling(served: Running) -> None:
    found = answer(served, "/v1/responses")
    assert (found["temperature"], found["top_p"]) == (0.6, 0.9)
    assert served.http.get("/speculation").json()["sampling"] == VALUES
