"""Other engines, if installed, answer a load on our weights: greedy and sampled."""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import starter
from foreword import LLM
from foreword.errors import InvalidRequest
from foreword.model import load_tokenizer
from foreword.types import SamplingParams
from foreword_lab.bench.peers.registry import Pair
from foreword_lab.bench.records import BenchRequest
from foreword_lab.bench.serving import llamacpp, openvino, servers
from foreword_lab.bench.serving.load import Ask, Load, send
from foreword_lab.bench.serving.servers import Served, command, free_port, running
from foreword_lab.bench.serving.targets import HttpTarget
from foreword_train.gguf.source import Source, source

TOKENS, SLOTS = 24, 16
TEXTS = (
    "Count from one to twenty:",
    "The capital of France is",
    "def add(a, b):",
    "<|user|>\nWho are you?<|end|>\n",
)
TOKENIZER = load_tokenizer(starter.target())


@pytest.fixture(scope="module")
def pair() -> Pair:
    def read(folder: Path) -> Source:
        return source(
            folder.name,
            AutoModelForCausalLM.from_pretrained(folder, dtype="float32"),
            TOKENIZER,
        )

    return Pair(lambda: read(starter.target()), lambda: read(starter.draft()), print)


def needs_llama_server() -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    if shutil.which(llamacpp.PROGRAM) is None:
        pytest.skip(f"no {llamacpp.PROGRAM} is on the PATH")


@pytest.fixture(scope="module", params=[*llamacpp.NAMES, *openvino.NAMES])
def ask(request, pair, tmp_path_factory) -> Iterator[tuple[str, Ask]]:
    """A peer's name, and what asks it."""
    name = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("peers")))
        if name in openvino.NAMES:
            pytest.importorskip(
                "openvino_genai", reason="OpenVINO GenAI is not installed"
            )
            yield name, openvino.OpenVinoTarget(name, pair, SLOTS).ask
            return
        needs_llama_server()
        port = free_port()
        files = Served(
            str(starter.target()), None, str(starter.target()), "float32", SLOTS, pair
        )
        with running(command(name, files, port), port, {}):
            yield name, HttpTarget((servers.HOST, port)).ask


def prompt(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER(text)["input_ids"])


def test_greedy_texts_equal_ours(ask):
    name, asks = ask
    requests = [
        BenchRequest(str(place), prompt(TEXTS[place % len(TEXTS)]), 0.0, place, TOKENS)
        for place in range(SLOTS)
    ]
    with LLM(starter.target(), method="none", dtype="float32") as llm:
        expected = llm.generate(
            [list(one.prompt) for one in requests],
            SamplingParams(temperature=0, max_tokens=TOKENS),
        )

    async def loads() -> list[Load]:
        return [
            await send(asks, requests, concurrency, "") for concurrency in (1, 4, SLOTS)
        ]

    for load in asyncio.run(loads()):
        assert load.failures == ()
        assert load.texts == [one.text for one in expected]
        assert [one.tokens for one in load.answers] == [
            len(one.tokens) for one in expected
        ]
        assert all(one.started < one.first <= one.last for one in load.answers)
        assert {one.cached for one in load.answers} == {0}
        assert (sum(one.accepted for one in load.answers) > 0) == (
            name == llamacpp.DRAFTING
        )


def test_samples_follow_the_seed_and_no_filter(ask, pair):
    """llama.cpp's default filters (min-p 0.05) would leave other likely tokens."""
    _, asks = ask
    start = prompt("My favourite word is")
    with torch.no_grad():
        scores = pair.target().model(torch.tensor([start])).logits[0, -1].softmax(-1)
    likely = {
        TOKENIZER.decode([token])
        for token in (scores >= 0.05 * scores.max()).nonzero().flatten().tolist()
    }
    requests = [BenchRequest(str(seed), start, 1.0, seed, 1) for seed in range(48)]

    async def loads() -> list[Load]:
        return [await send(asks, requests, concurrency, "") for concurrency in (1, 4)]

    first, second = asyncio.run(loads())
    assert first.failures == second.failures == ()
    assert first.texts == second.texts
    assert set(first.texts) - likely


def test_missing_program_of_llamacpp_is_named(monkeypatch, tmp_path, pair):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        InvalidRequest,
        match=r"cannot serve with llama\.cpp.* (no llama-server is on the PATH|gguf)",
    ):
        llamacpp.command(llamacpp.ALONE, pair, 1)
    assert llamacpp.version() == "unknown"


def test_missing_draft_model_leaves_out_one_row(pair, monkeypatch, tmp_path):
    needs_llama_server()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def none() -> Source:
        raise InvalidRequest("no draft")

    without = replace(pair, draft=none)
    assert "--spec-draft-model" not in llamacpp.command(llamacpp.ALONE, without, 1)
    with pytest.raises(InvalidRequest, match="no draft"):
        llamacpp.command(llamacpp.DRAFTING, without, 1)
