"""Sampling that a request leaves out is that of the model's owner, in every API."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import gguf_files
import starter
from foreword import LLM, AsyncLLM, InvalidRequest, SamplingParams
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
def test_every_api_has_the_sampling_of_the_owner(served: Running, path: str) -> None:
    assert text(answer(served, path)) == expected(served, path)
    given = {name: VALUES[name] for name in ("temperature", "top_p")}
    assert text(answer(served, path, **given)) == expected(served, path)
    cold = expected(served, path, temperature=0.2)
    assert text(answer(served, path, temperature=0.2)) == cold


def test_a_response_and_the_page_name_the_sampling(served: Running) -> None:
    found = answer(served, "/v1/responses")
    assert (found["temperature"], found["top_p"]) == (0.6, 0.9)
    assert served.http.get("/speculation").json()["sampling"] == VALUES


def defaults(source, **how):
    with LLM(source, method="none", **how) as llm:
        return llm.sampling


async def chatted(llm):
    async with AsyncLLM(llm) as served:
        return await served.chat(CHAT)


@pytest.mark.parametrize(
    "ask", [lambda llm: llm.chat(CHAT), lambda llm: asyncio.run(chatted(llm))]
)
def test_left_out_sampling_is_that_of_the_owner(served, ask):
    llm = served.service.llm
    answer = ask(llm)
    same = llm.chat(CHAT, SamplingParams(**VALUES, seed=answer.seed))
    assert answer.tokens == same.tokens
    assert answer.stats.accepted > 0
    plain = llm.chat(CHAT, SamplingParams(seed=answer.seed))
    assert plain.tokens != answer.tokens, "given parameters stay as they are"


def test_only_given_defaults_replace_those_of_the_owner(served):
    llm = served.service.llm
    greedy = llm.chat(CHAT, SamplingParams(temperature=0)).text
    with LLM(llm.target.name, generation_config={"temperature": 0}) as cold:
        text = "".join(delta.text for delta in cold.stream_chat(CHAT))
        assert cold.sampling == {**VALUES, "temperature": 0}
    params = SamplingParams(**{**VALUES, "temperature": 0})
    assert text == llm.chat(CHAT, params).text != greedy


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 0.7, "top_p": 0.8}, {"temperature": 0.7, "top_p": 0.8}),
        ({"temperature": 0, "typical_p": 0.9}, {"temperature": 0, "typical_p": 0.9}),
        ({"do_sample": False, "temperature": 0.7}, {}),
        ({"do_sample": True, "num_beams": 1, "max_new_tokens": 8}, {}),
        ({"_from_model_config": True, "top_k": 50}, {}),
    ],
)
def test_settings_of_a_folder(tmp_path, settings, expected):
    folder = owned(tmp_path / "model", **settings)
    assert defaults(folder) == expected
    assert defaults(folder, generation_config="none") == {}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore:.*generation flags")
@pytest.mark.parametrize("value", [-1, "hot", [1], float("nan")])
def test_values_out_of_range_are_ignored_with_a_warning(tmp_path, value):
    folder = owned(tmp_path / "model", temperature=value, top_p=0.8)
    with pytest.warns(UserWarning, match="temperature must be .* It is ignored"):
        assert defaults(folder) == {"top_p": 0.8}


def test_settings_of_a_gguf_file_are_those_of_its_converter(tmp_path):
    keys = dict(temp=0.6, top_k=40, top_p=0.9, penalty_repeat=1.05, mirostat=2)
    fields = {f"general.sampling.{key}": value for key, value in keys.items()}
    plain = gguf_files.small(tmp_path)
    file = gguf_files.quantized(plain, tmp_path / "sampled.gguf", "Q8_0", **fields)
    assert defaults(plain) == {}
    assert defaults(file) == VALUES


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("config", ["some", {"seed": 3}, {"top_p": 7}, None])
def test_wrong_defaults_are_refused_before_a_model_loads(monkeypatch, config):
    monkeypatch.setattr("foreword.model.Model.load", None)
    with pytest.raises(InvalidRequest, match=r"generation_config|top_p must be"):
        LLM(generation_config=config)
