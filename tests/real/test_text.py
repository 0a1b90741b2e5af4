"""Published models run natively, and drafts change no token of their text."""

import json
import sys
from dataclasses import replace
from itertools import islice, takewhile
from math import inf
from pathlib import Path
from time import perf_counter

import pytest
import torch

from foreword import LLM, Completion, InvalidRequest, SamplingParams
from foreword.model import Mode
from running import emptied

pytestmark = pytest.mark.real

PROMPTS = [
    [{"role": "user", "content": json.loads(line)["prompt"]}]
    for line in Path(__file__).with_name("spec_bench.jsonl").read_text().splitlines()
]
LENGTH = 24
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, method="none")
HEATS = (0.0, 0.8)
NEAR = 0.25
"""Nats by which a token may be less likely than the chosen one to count as a tie."""
PAGE = 64
"""Tokens of keys and values that are held or given up together."""


def answers(llm: LLM, method: str, heat: float, *prompts: int) -> list[Completion]:
    """Answer the prompts together; without numbers, all of them."""
    numbers = prompts or range(len(PROMPTS))
    params = [
        replace(GREEDY, method=method, temperature=heat, seed=number)
        for number in numbers
    ]
    return llm.chat([PROMPTS[number] for number in numbers], params)


def tokens(completions: list[Completion]) -> list[list[int]]:
    return [completion.tokens for completion in completions]


def accepted(completions: list[Completion]) -> int:
    return sum(completion.stats.accepted for completion in completions)


@pytest.fixture(scope="package")
def plain(llm: LLM) -> dict[float, list[list[int]]]:
    """The plain texts of all prompts, by temperature."""
    return {heat: tokens(answers(llm, "none", heat)) for heat in HEATS}


def best(name: str) -> str:
    """Return the method that drafts most for a model."""
    return "cascade" if name == "qwen-1.5b" else "ngram"


def test_model_runs_natively(llm):
    capability = llm.target.capability
    assert (capability.backend, capability.mode) == ("native", Mode.TREE)
    assert capability.refused == ()


@pytest.mark.parametrize("method", ["ngram", "lm", "cascade"])
def test_drafted_text_is_the_plain_one(llm, name, plain, method):
    if method != "ngram" and best(name) == "ngram":
        pytest.skip(f"nothing smaller drafts for {name}")
    for heat, texts in plain.items():
        drafted = answers(llm, method, heat)
        assert tokens(drafted) == texts, heat
        assert accepted(drafted) > len(PROMPTS) // 4, heat
        assert {answer.undrafted for answer in drafted} == {None}
    assert len({tuple(text) for texts in plain.values() for text in texts}) > 60


def test_text_alone_is_the_one_in_a_batch(llm, name, plain):
    for method in ("none", best(name)):
        for heat, texts in plain.items():
            for number in range(1, len(PROMPTS), 13):
                (alone,) = answers(llm, method, heat, number)
                assert alone.tokens == texts[number], (method, heat, number)


def test_text_after_preemption_is_the_plain_one(llm, name, plain):
    numbers = [6, 7, 8, 9, 10, 12, 13, 15]
    target = llm.target
    emptied(target)
    before, held = llm.engine.load.preemptions, target.cache_tokens
    target.cache_tokens = 6 * PAGE
    try:
        drafted = answers(llm, best(name), 0.8, *numbers)
    finally:
        target.cache_tokens = held
    assert llm.engine.load.preemptions > before
    assert tokens(drafted) == [plain[0.8][number] for number in numbers]
    assert accepted(drafted) > 0


def test_drafts_change_no_token_with_int8_keys(name, opened):
    numbers = range(0, len(PROMPTS), 4)
    with opened(name, kv="int8") as llm:
        assert llm.target.capability.backend == "native"
        for heat in HEATS:
            texts = tokens(answers(llm, "none", heat, *numbers))
            drafted = answers(llm, best(name), heat, *numbers)
            assert tokens(drafted) == texts
            assert accepted(drafted) > 0


def test_context_is_used_to_its_end(llm, name):
    """Only of the smallest model: the others' contexts take an hour to read."""
    if name != "smollm2":
        pytest.skip(f"a prompt of {llm.target.context} tokens takes too long")
    text = "".join(chat[0]["content"] for chat in PROMPTS)
    ids = (llm.tokenizer(text).input_ids * 9)[: llm.target.context - LENGTH]
    params = replace(GREEDY, ignore_eos=True)
    plain, drafted = (
        llm.generate([ids], replace(params, method=method))[0]
        for method in ("none", "ngram")
    )
    assert (len(plain.tokens), plain.finish_reason) == (LENGTH, "length")
    assert (drafted.tokens, drafted.finish_reason) == (plain.tokens, "length")
    assert drafted.stats.accepted > 0
    with pytest.raises(InvalidRequest, match="exceeds the model's context of 8192"):
        llm.generate([[*ids, 1]], params)


def test_first_tokens_are_those_of_llama_cpp(llm, name, model, capsys):
    """Texts may part at a near-tie: ours must hold theirs nearly as likely."""
    llama_cpp = pytest.importorskip("llama_cpp")
    threads = dict.fromkeys(["n_threads", "n_threads_batch"], torch.get_num_threads())
    peer = llama_cpp.Llama(str(model(name)), n_ctx=512, verbose=False, **threads)
    seconds, equal = {"llama.cpp": 0.0, "Foreword": 0.0}, []
    for number in (6, 9, 12, 20):
        ids = llm.render(PROMPTS[number])
        params = replace(GREEDY, ignore_eos=True, logprobs=5, method=None)
        begun = perf_counter()
        (ours,) = llm.generate([ids], params)
        seconds["Foreword"] += perf_counter() - begun
        begun = perf_counter()
        theirs = list(islice(peer.generate(ids, temp=0, repeat_penalty=1), LENGTH))
        seconds["llama.cpp"] += perf_counter() - begun
        pairs = zip(ours.tokens, theirs, strict=True)
        equal.append(len([*takewhile(lambda pair: pair[0] == pair[1], pairs)]))
        if ours.tokens != theirs:
            near = dict(ours.logprobs[equal[-1]].top)
            token, other = ours.tokens[equal[-1]], theirs[equal[-1]]
            assert near[token] - near.get(other, -inf) < NEAR, (number, equal)
    peer.close()
    with capsys.disabled():
        rates = (f"{who} {4 * LENGTH / took:.1f}" for who, took in seconds.items())
        report = f"{name}, tokens/s with the prompt: {', '.join(rates)}"
        sys.stdout.write(f"\n{report}; equal tokens of {LENGTH}: {equal}\n")
