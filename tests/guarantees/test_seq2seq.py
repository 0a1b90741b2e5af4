"""Encoder-decoders: greedy text is that of transformers' `generate`, and drafts change no token of a sampled one."""

from functools import cache

import pytest
import torch

import tiny_seq2seq
from foreword import LLM, SamplingParams
from foreword.model import Mode, Model

FAMILIES = list(tiny_seq2seq.FAMILIES)
LENGTHS = (1, 7, 13, 40)
NEW = 30


@cache
def target(name: str) -> Model:
    return Model(tiny_seq2seq.build(name), name)


@cache
def llm(name: str, method: str) -> LLM:
    draft = Model(tiny_seq2seq.build(name), name) if "lm" in method else None
    return LLM(target(name), tokenizer=tiny_seq2seq.tokenizer(name), method=method, draft=draft, nodes=4)


@cache
def sources() -> list[list[int]]:
    """Random tokens, said twice, so that there is something to copy."""
    noise = torch.Generator().manual_seed(5)
    return [torch.randint(60, 310, (length,), generator=noise).tolist() * 2 for length in LENGTHS]


@cache
def wanted(name: str) -> list[list[int]]:
    """What transformers writes for each source, greedily."""
    model = tiny_seq2seq.build(name)
    options = dict(num_beams=1, do_sample=False, max_new_tokens=NEW)
    return [model.generate(torch.tensor([source]), **options)[0].tolist() for source in sources()]


def params(name: str, **more) -> SamplingParams:
    """`generate` counts a forced first token as a new one."""
    return SamplingParams(max_tokens=NEW + 1 - len(target(name).seq2seq.start), **more)


@pytest.mark.parametrize("method", ["none", "ngram", "lm"])
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_text_is_that_of_generate(name, method):
    one, greedy = llm(name, method), params(name, temperature=0)
    assert one.target.mode is Mode.CACHE
    together = one.generate(sources(), greedy)
    start = list(target(name).seq2seq.start)
    assert [[*start, *answer.tokens] for answer in together] == wanted(name)
    alone = [one.generate(source, greedy)[0].tokens for source in sources()]
    assert alone == [answer.tokens for answer in together]
    assert [answer.prompt_tokens for answer in together] == sources()


@pytest.mark.parametrize("method", ["ngram", "suffix", "lm", "cascade(suffix, lm)"])
@pytest.mark.parametrize("name", FAMILIES)
def test_drafts_change_no_token_of_a_sampled_text(name, method):
    asked = [params(name, temperature=1.0, seed=seed, ignore_eos=True) for seed in range(len(LENGTHS))]
    plain = llm(name, "none").generate(sources(), asked)
    drafted = llm(name, method).generate(sources(), asked)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert [one.undrafted for one in drafted] == [None] * len(drafted)
    assert sum(one.stats.drafted for one in drafted) > 0
    if "lm" in method:
        assert sum(one.stats.accepted for one in drafted) > 40
