"""An encoder-decoder behind the server: completions, and errors for chats."""

from collections.abc import Iterator

import pytest

import tiny_seq2seq
from asking import user
from foreword import LLM, SamplingParams
from foreword.model import Model
from serving import Running, running

SOURCE = "One two three. " * 4


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    target = Model(tiny_seq2seq.build("pegasus"), "pegasus")
    with LLM(target, tokenizer=tiny_seq2seq.tokenizer("pegasus"), nodes=4) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Running]:
    with running(llm, name="tiny") as server:
        yield server


def test_a_completion_is_of_its_source(server, llm):
    asked = dict(model="tiny", prompt=SOURCE, seed=3)
    found = server.post("/v1/completions", **asked, max_tokens=50)
    expected = llm.generate(SOURCE, SamplingParams(seed=3, max_tokens=50))[0]
    assert found["choices"][0]["text"] == expected.text != ""
    assert found["usage"]["prompt_tokens"] == len(llm.tokenizer(SOURCE)["input_ids"])
    # more than there is room for
    whole = server.post("/v1/completions", **asked, max_tokens=1000)
    assert whole["usage"]["completion_tokens"] == llm.target.context - 1
    listed = server.http.get("/v1/models?methods=1").json()["data"]
    names = {one["id"] for one in listed}
    # what needs no draft of its own
    able = ("none", "ngram", "suffix", "predicted", "recycle", "lookahead", "layers")
    assert names == {"tiny", *(f"tiny:{method}" for method in able)}
    count = 2 * found["usage"]["prompt_tokens"]
    metric = 'vllm:prompt_tokens_total{engine="0",model_name="tiny"}'
    assert f"{metric} {count}.0" in server.http.get("/metrics").text


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("chat/completions", dict(messages=[user("A")]), "has no chat template"),
        ("messages", dict(messages=[user("A")], max_tokens=4), "has no chat template"),
        ("responses", dict(input="A text."), "has no chat template"),
        ("completions", dict(max_tokens=0, echo=True, logprobs=1), "cannot score a"),
        ("completions", dict(prompt="a" * 200), "the prompt has 201 tokens"),
        ("completions", dict(language="fr"), "cannot answer in language='fr'"),
        ("completions", dict(speculative={"method": "quantized"}), "encoder-decoder"),
    ],
)
def test_what_it_cannot_do_is_said(server, path, body, said):
    source = dict(prompt=SOURCE) if path == "completions" else {}
    body = dict(source, model="tiny") | body
    response = server.http.post(f"/v1/{path}", json=body)
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]
