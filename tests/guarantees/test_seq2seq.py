"""Encoder-decoders: greedy text is transformers', drafts change no token."""

import weakref
from dataclasses import replace
from functools import cache

import pytest
import torch

import tiny_seq2seq
from foreword import LLM, SamplingParams
from foreword.draft.lookup.datastore import build
from foreword.model import Mode, Model
from generating import greedy
from grids import grid, slow_case
from tiny_seq2seq import target

FAMILIES = list(tiny_seq2seq.FAMILIES)
T5_IN_C = "t5" + tiny_seq2seq.IN_C
GREEDILY = (("t5", "lm"), ("bart", "ngram"), ("marian", "lm"), ("led", "lm"))
SAMPLED = (("pegasus", "ngram"), ("bart", "lm"), ("led", "lm"), (T5_IN_C, "suffix"))
REPEATING = (("t5", "ngram", 0.0), ("t5", "recycle", 1.0), (T5_IN_C, "predicted", 1.0))
"""Cases of `make test`: positions, forced tokens, caches, C, a draft model, lookups."""
LENGTHS = (1, 7, 13, 40)
NEW = 20


def family_grid(kept: tuple[tuple, ...], *values: list) -> list:
    return grid(kept, *values, in_c=lambda case: tiny_seq2seq.IN_C in case[0])


IN_C_NAMES = [f"{name}{tiny_seq2seq.IN_C}" for name in ("t5", "flan-t5", "mt5", "umt5")]


@cache
def llm(name: str, method: str) -> LLM:
    draft = Model(tiny_seq2seq.build(name), name) if "lm" in method else None
    options = dict(method=method, draft=draft, nodes=4)
    return LLM(target(name), tokenizer=tiny_seq2seq.tokenizer(name), **options)


@cache
def sure(name: str, method: str) -> LLM:
    """A target with logits 30 times as large: it repeats itself at temperature 1."""
    model = tiny_seq2seq.build(name)
    model.lm_head.weight.data *= 30
    return LLM(model, tokenizer=tiny_seq2seq.tokenizer(name), method=method, nodes=4)


@cache
def sources() -> list[list[int]]:
    """Random tokens, said twice, so that there is something to copy."""
    noise = torch.Generator().manual_seed(5)
    drawn = [torch.randint(60, 310, (one,), generator=noise) for one in LENGTHS]
    return [one.tolist() * 2 for one in drawn]


@cache
def wanted(name: str) -> list[list[int]]:
    """What transformers writes for each source, greedily."""
    model, options = tiny_seq2seq.build(name), greedy(NEW) | dict(num_beams=1)
    inputs = [torch.tensor([source]) for source in sources()]
    return [model.generate(one, **options)[0].tolist() for one in inputs]


def params(name: str, **more) -> SamplingParams:
    """`generate` counts a forced first token as a new one."""
    return SamplingParams(max_tokens=NEW + 1 - len(target(name).seq2seq.start), **more)


def seeded(name: str, **more) -> list[SamplingParams]:
    """Parameters for each source, of another seed each."""
    return [params(name, seed=seed, **more) for seed in range(len(LENGTHS))]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "method"), family_grid(GREEDILY, FAMILIES, ["none", "ngram", "lm"])
)
def test_greedy_text_is_that_of_generate(name, method):
    one, greedy = llm(name, method), params(name, temperature=0)
    assert one.target.mode is (Mode.CACHE if name == "led" else Mode.TREE)
    together = one.generate(sources(), greedy)
    start = list(target(name).seq2seq.start)
    assert [[*start, *answer.tokens] for answer in together] == wanted(name)
    alone = [one.generate(source, greedy)[0].tokens for source in sources()[:2]]
    assert alone == [answer.tokens for answer in together[:2]]
    assert [answer.prompt_tokens for answer in together] == sources()
    if method == "lm":
        assert sum(answer.stats.accepted for answer in together) > 20


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "method"),
    family_grid(
        SAMPLED,
        [*FAMILIES, *IN_C_NAMES],
        ["ngram", "suffix", "lm", "cascade(suffix, lm)"],
    ),
)
def test_drafts_change_no_token_of_a_sampled_text(name, method):
    asked = seeded(name, temperature=1.0, ignore_eos=True)
    plain = llm(name, "none").generate(sources(), asked)
    drafted = llm(name, method).generate(sources(), asked)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert [one.undrafted for one in drafted] == [None] * len(drafted)
    assert sum(one.stats.drafted for one in drafted) > 0
    if "lm" in method:
        assert sum(one.stats.accepted for one in drafted) > 30


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "method", "temperature"),
    family_grid(
        REPEATING,
        ["t5", "m2m100", *IN_C_NAMES],
        ["ngram", "suffix", "recycle", "lookahead", "predicted"],
        [0.0, 1.0],
    ),
)
def test_lookups_change_no_token_of_a_text_that_repeats_itself(
    name, method, temperature
):
    plain, drafted = sure(name, "none"), sure(name, method)
    asked = seeded(name, temperature=temperature, ignore_eos=True)
    expected = plain.generate(sources(), asked)
    if method == "predicted":  # what it copies without one is in tests/draft
        predictions = [tuple(answer.tokens[5:]) for answer in expected]
        pairs = zip(asked, predictions, strict=True)
        asked = [replace(one, prediction=text) for one, text in pairs]
    found = drafted.generate(sources(), asked)
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    assert [one.undrafted for one in found] == [None] * len(found)
    assert sum(one.stats.accepted for one in found) >= 10


@pytest.mark.parametrize(
    ("name", "temperature"),
    family_grid((("bart", 1.0), (T5_IN_C, 0.0)), ["bart", T5_IN_C], [0.0, 1.0]),
)
def test_a_datastore_serves_an_encoder_decoder(name, temperature, tmp_path):
    one = llm(name, "none")
    letters = dict.fromkeys(one.tokenizer("abcdefgh")["input_ids"][:-1], 50.0)
    asked = seeded(name, temperature=temperature, logit_bias=letters)
    expected = one.generate(sources(), asked)
    store, tokenizer = tmp_path / "store", one.tokenizer
    build([("answers", answer.text) for answer in expected], tokenizer, store)
    options = dict(method="retrieval", draft=store, nodes=4)
    with LLM(one.target, tokenizer=tokenizer, **options) as looks:
        found = looks.generate(sources(), asked)
    assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]
    assert sum(answer.stats.accepted for answer in found) > 30


@pytest.mark.parametrize(
    "rule", ["suppress_tokens", "begin_suppress_tokens", "bad_words_ids"]
)
def test_what_the_settings_forbid_is_not_written(rule):
    coldest = params("t5", temperature=0)
    free = llm("t5", "none").generate(sources()[1], coldest)[0].tokens
    chosen = {
        "suppress_tokens": [free[2]],
        "begin_suppress_tokens": [free[0]],
        "bad_words_ids": [free[3:5]],
    }
    model = tiny_seq2seq.build("t5")
    model.generation_config.update(**{rule: chosen[rule]})
    options = greedy(NEW) | dict(num_beams=1)
    expected = model.generate(torch.tensor([sources()[1]]), **options)[0, 1:].tolist()
    tokenizer = tiny_seq2seq.tokenizer("t5")
    with LLM(model, tokenizer=tokenizer, draft=model, nodes=4) as one:
        found = one.generate(sources()[1], [coldest])[0]
    assert found.tokens == expected != free
    assert found.stats.accepted > 0


@pytest.mark.parametrize("name", ["bart", slow_case("m2m100")])
def test_text_may_fill_the_context(name):
    source = (sources()[-1] * 2)[: target(name).context]
    room = target(name).context - len(target(name).seq2seq.start)
    whole = SamplingParams(temperature=0, max_tokens=room, ignore_eos=True)
    free = tiny_seq2seq.build(name)
    free.generation_config.update(eos_token_id=None, forced_eos_token_id=None)
    new = room + len(target(name).seq2seq.start) - 1
    options = greedy(new) | dict(num_beams=1)
    expected = free.generate(torch.tensor([source]), **options)[0].tolist()
    for method in ("none", "lm"):
        found = llm(name, method).generate(source, whole)[0]
        assert found.tokens == expected[-room:]
        assert (found.stats.accepted > 0) == (method == "lm")


def test_cut_text_ends_as_the_settings_say():
    asked = params("bart", temperature=0)
    ends = [[answer] for answer in llm("bart", "none").generate(sources(), asked)]
    for (answer,) in ends:
        assert (answer.tokens[-1], answer.finish_reason) == (2, "length")
        assert len(answer.tokens) == asked.max_tokens
    endless = params("bart", temperature=0, ignore_eos=True)
    whole = llm("bart", "none").generate(sources(), endless)
    assert [one.tokens[:-1] for one in whole] == [one.tokens[:-1] for (one,) in ends]
    assert 2 not in {one.tokens[-1] for one in whole}


def test_an_answer_follows_an_expression():
    asked = SamplingParams(regex="(ab|cd)+", max_tokens=12, seed=1)
    plain, drafted = (
        llm("bart", method).generate("Say it.", asked)[0] for method in ("none", "lm")
    )
    assert set(plain.text) <= set("abcd")
    assert plain.text == drafted.text != ""
    assert drafted.stats.accepted > 0


@pytest.mark.parametrize(
    ("name", "method"),
    family_grid(
        (("pegasus", "ngram"), ("led", "lm"), (T5_IN_C, "lm")),
        ["pegasus", "led", T5_IN_C],
        ["ngram", "lm"],
    ),
)
def test_encoder_runs_once_a_text_and_frees_its_states(name, method):
    one = llm(name, method)
    states: list[weakref.ref] = []
    models = [one.target, *([one.engine.drafter.model] if method == "lm" else [])]

    def keep(*call) -> None:
        states.append(weakref.ref(call[-1][0]))

    encoders = [model.hf.get_encoder() for model in models]
    hooks = [encoder.register_forward_hook(keep) for encoder in encoders]
    answers = one.stream(sources()[2], params(name, seed=1, ignore_eos=True))
    next(answers)
    # the pool keeps only the keys and values that the decoder makes of them
    pooled = one.target.mode is Mode.TREE
    assert [state() is None for state in states] == [False]  # equal encoders are one
    assert sum(len(delta.tokens) for delta in answers) > 10
    one.generate(sources(), params(name, seed=1, ignore_eos=True))
    for hook in hooks:
        hook.remove()
    assert len(states) == 1 + len(LENGTHS)
    assert [state() for state in states] == [None] * len(states)
    assert not any(model.backend.pool.held for model in models if pooled)
