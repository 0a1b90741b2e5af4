"""Installed engines run our weights in every mode: the same scores, the same tokens."""

from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM

import starter
from foreword.model import load_tokenizer
from foreword.prompts import load
from foreword_lab.bench.peers import llamacpp, registry
from foreword_lab.bench.peers.engines import ASSISTED, ENGINES, GENERATE, LOOKUP, MODES
from foreword_lab.bench.peers.registry import Pair
from foreword_lab.bench.records import BenchRequest, Trial
from foreword_train.gguf.source import Source, source

TOKENS = 24
TOKENIZER = load_tokenizer(starter.target())


@pytest.fixture(scope="module", params=ENGINES)
def engine(request, needs) -> str:
    """The name of an installed engine."""
    needs(request.param)
    return request.param


@pytest.fixture(scope="module")
def target() -> Source:
    return source(
        "the family",
        AutoModelForCausalLM.from_pretrained(starter.target(), dtype="float32"),
        TOKENIZER,
    )


@pytest.fixture(scope="module")
def pair(target) -> Pair:
    draft = source(
        "its draft",
        AutoModelForCausalLM.from_pretrained(starter.draft(), dtype="float32"),
        TOKENIZER,
    )
    return Pair(lambda: target, lambda: draft, print)


@pytest.fixture(scope="module")
def answers(target, requests) -> list[list[int]]:
    """The answers of transformers in float32."""
    generate = cast(Any, target.model).generate
    prompts = [torch.tensor([request.prompt]) for request in requests]
    return [
        generate(
            p, attention_mask=torch.ones_like(p), max_new_tokens=TOKENS, do_sample=False
        )[0, p.shape[1] :].tolist()
        for p in prompts
    ]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_repeats_the_greedy_text(engine, mode, pair, requests, answers):
    entry = registry.make(f"{engine}.{mode}", pair)
    trials = [entry.run(request) for request in (*requests, *requests)]
    assert [trial.tokens for trial in trials] == [*answers, *answers]
    written = sum(map(len, answers))
    passes = [sum(trial.passes for trial in half) for half in (trials[:4], trials[4:])]
    assert passes[0] == passes[1]
    assert passes[0] == written if mode == GENERATE else passes[0] < 0.8 * written
    assert all(trial.seconds > 0 for trial in trials)


def test_sampled_text_follows_the_seed(engine, pair, requests):
    entry = registry.make(f"{engine}.{GENERATE}", pair)

    def sampled(seed: int) -> Trial:
        return entry.run(BenchRequest("", requests[0].prompt, 1.0, seed, TOKENS))

    assert sampled(1).tokens == sampled(1).tokens != sampled(2).tokens


def test_llamacpp_tokenizes_as_our_tokenizer_does(target, needs):
    needs("llamacpp")
    import llama_cpp

    llama = llama_cpp.Llama(
        str(llamacpp.file(target, print)), vocab_only=True, verbose=False
    )
    texts = [
        message["content"]
        for kind in ("in-domain", "out-of-domain")
        for p in load(kind)
        for message in p.messages
    ]
    for text in (*texts, "<|user|>\nit's 1234,  x\t日本語 é\n\n<|end|>"):
        assert (
            llama.tokenize(text.encode(), add_bos=False, special=True)
            == TOKENIZER(text)["input_ids"]
        )


def test_assisted_mode_needs_a_draft_model(target, needs):
    def none() -> Source:
        raise ValueError("no draft")

    for engine in ENGINES:
        needs(engine)
        with pytest.raises(ValueError, match="no draft"):
            registry.make(f"{engine}.{ASSISTED}", Pair(lambda: target, none, print))
        registry.make(f"{engine}.{LOOKUP}", Pair(lambda: target, none, print))


def test_llamacpp_reads_a_repeated_prompt_again(pair, requests, needs):
    needs("llamacpp")
    entry = cast(llamacpp.LlamaCpp, registry.make("llamacpp.generate", pair))
    read, inner = [], entry._llama.eval

    def counted(tokens: Any) -> None:
        read.append(len(tokens))
        inner(tokens)

    entry._llama.eval = counted
    for _ in range(2):
        entry.run(requests[0])
    assert read.count(len(requests[0].prompt)) == 2
