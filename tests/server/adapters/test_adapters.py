"""A server with adapters: each is a model by name, over HTTP, in every dialect."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import httpx2 as httpx
import openai
import pytest
from transformers import AutoModelForCausalLM

import tiny_lora
from foreword import LLM, SamplingParams, bundled
from foreword.errors import InvalidRequest
from foreword.registry import METHODS
from serving import Running, running
from waiting import line_with

TEXT = "One day the little girl who lived near the forest. One day the little girl"
GREEDY = SamplingParams(temperature=0, max_tokens=24)
CHAT = [{"role": "user", "content": "Say hello to the little girl."}]
NAMES = ("sql", "docs/v2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = AutoModelForCausalLM.from_pretrained(bundled.target(), dtype="float32")
    found = tiny_lora.two(base, tmp_path_factory.mktemp("adapters"))
    return dict(zip(NAMES, found.values(), strict=True))


@pytest.fixture(scope="module")
def llm(folders: dict[str, Path]) -> Iterator[LLM]:
    with LLM(adapters=folders, nodes=4) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Running]:
    with running(llm) as server:
        yield server


@pytest.fixture(scope="module")
def texts(llm: LLM) -> dict[str, str]:
    """What each model writes after TEXT by itself, plainly."""
    plain = replace(GREEDY, method="none")
    names = {"foreword-family": None, **dict(zip(NAMES, NAMES, strict=True))}
    return {
        model: llm.generate([TEXT], replace(plain, adapter=name))[0].text
        for model, name in names.items()
    }


def test_models_are_the_base_and_its_adapters(server):
    base, *adapters = server.http.get("/v1/models").json()["data"]
    assert (base["id"], base["parent"]) == ("foreword-family", None)
    assert [one["id"] for one in adapters] == [*NAMES]
    for one in adapters:
        assert one["parent"] == one["root"] == "foreword-family"
        assert server.http.get(f"/v1/models/{one['id']}").json() == one
    assert str(bundled.target()) not in server.http.get("/v1/models").text


def test_methods_are_suffixes_of_adapters_too(server):
    data = server.http.get("/v1/models?methods=1").json()["data"]
    by_id = {one["id"]: one for one in data}
    assert len(data) % 3 == 0
    assert len(data) > len(METHODS)
    assert by_id["sql:ngram"]["parent"] == "foreword-family"
    assert by_id["foreword-family:ngram"]["parent"] is None


@pytest.mark.parametrize("suffix", ["", ":lm", ":none", ":ngram"])
def test_name_selects_the_adapter(server, texts, suffix):
    assert len({*texts.values()}) == 3
    for model, text in texts.items():
        answer = server.post(
            "/v1/completions",
            model=f"{model}{suffix}",
            prompt=TEXT,
            temperature=0,
            max_tokens=24,
        )
        assert answer["model"] == model
        assert answer["choices"][0]["text"] == text
        if suffix == ":lm":
            assert answer["timings"]["draft_n_accepted"] > 0


@pytest.mark.parametrize("name", ["other", "sql:other", "other:lm", "sql/x", "SQL"])
def test_unknown_names_are_404_and_told_what_there_is(server, name):
    body = {"model": name, "prompt": TEXT, "max_tokens": 4}
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "model_not_found"
    if name != "sql:other":
        for known in ("'foreword-family'", "'sql'", "'docs/v2'"):
            assert known in error["message"]


@pytest.mark.slow
def test_clients_reach_an_adapter_in_each_dialect(server):
    ours: Any = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    theirs: Any = anthropic.Anthropic(base_url=server.url, api_key="none")
    found: dict[str, list[str]] = {}
    for model in ("foreword-family", *NAMES):
        chat = ours.chat.completions.create(
            model=model, messages=CHAT, temperature=0, max_tokens=24
        )
        stream = ours.chat.completions.create(
            model=model, messages=CHAT, temperature=0, max_tokens=24, stream=True
        )
        chunks = list(stream)
        response = ours.responses.create(
            model=model, input=CHAT, temperature=0, max_output_tokens=24
        )
        message = theirs.messages.create(
            model=model, messages=CHAT, max_tokens=24, extra_body={"temperature": 0}
        )
        assert {one.model for one in (chat, *chunks, response, message)} == {model}
        found[model] = [
            chat.choices[0].message.content,
            "".join(one.choices[0].delta.content or "" for one in chunks),
            response.output_text,
            message.content[0].text,
        ]
    assert all(len({*texts}) == 1 for texts in found.values())
    assert len({texts[0] for texts in found.values()}) == 3


def test_echoed_prompts_are_scored_by_the_adapter(server, llm):
    for model, adapter in (("foreword-family", None), ("sql", "sql")):
        answer = server.post(
            "/v1/completions",
            model=model,
            prompt=TEXT,
            max_tokens=0,
            echo=True,
            logprobs=0,
        )
        found = answer["choices"][0]["logprobs"]["token_logprobs"]
        scored = [one and one.logprob for one in llm.score(TEXT, adapter=adapter)]
        assert found[1:] == pytest.approx(scored[1:])


def test_prefixes_of_an_adapter_are_its_own(server):
    prompt = "Rain fell on the hills and ran down to the sea. " * 20
    counts = [
        server.post("/v1/completions", model=model, prompt=prompt, max_tokens=2)[
            "usage"
        ]["prompt_tokens_details"]["cached_tokens"]
        for model in ("sql", "foreword-family", "docs/v2", "sql", "foreword-family")
    ]
    assert counts[:3] == [0, 0, 0]
    assert min(counts[3:]) > 64


def test_any_model_answers_where_the_settings_say_so(folders):
    adapters = {"gpt-mine": folders["sql"]}
    with LLM(adapters=adapters, nodes=4) as llm, running(llm, any_model=True) as server:
        names = ("gpt-mine", "gpt-mine:ngram", "gpt-other", "gpt-other:ngram")
        body = {"prompt": TEXT, "temperature": 0, "max_tokens": 12}
        found = [server.post("/v1/completions", model=one, **body) for one in names]
    models = [one["model"] for one in found]
    assert models == ["gpt-mine", "gpt-mine", "foreword-family", "foreword-family"]
    texts = [one["choices"][0]["text"] for one in found]
    assert texts[0] == texts[1] != texts[2] == texts[3]


def test_an_adapter_cannot_have_the_name_of_the_model(llm):
    refused = pytest.raises(InvalidRequest, match="cannot serve an adapter as 'sql'")
    with refused, running(llm, name="sql"):
        pass


@pytest.mark.parametrize(
    "options", [("a",), ("=folder",), ("a=",), ("a=x", "--lora", "a=y")], ids=" ".join
)
def test_malformed_adapters_are_refused_at_once(here, options):
    ended = here("serve", "--lora", *options)
    assert ended.returncode == 2
    assert "Give NAME=FOLDER" in ended.stderr


def test_command_serves_adapters(folders):
    loras = [word for n, f in folders.items() for word in ("--lora", f"{n}={f}")]
    command = (sys.executable, "-m", "foreword", "serve", "--port", "0", *loras)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = line_with(r"http://[\d.]+:\d+", process)[0]
            data = httpx.get(f"{address}/v1/models").json()["data"]
            assert [one["id"] for one in data] == ["foreword-family", *NAMES]
        finally:
            process.kill()
