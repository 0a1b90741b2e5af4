"""The default method: `auto`, with the source's own method and the lookups."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as hf

from foreword import LLM, Completion, Recording, SamplingParams, bundled
from foreword.draft import method_of
from foreword.draft.cross_vocab.pairing import CrossVocabularyDrafter
from foreword.draft.lm import LanguageModelDrafter
from foreword.hf import loop
from foreword.options import DraftingOptions
from generating import OURS, greedy, ids
from other_tokenizers import NEAR, TRANSLATED
from running import DTYPE
from serving import running

PAIR = "auto(lm, ngram, suffix)"
LOOKUPS = "auto(ngram, suffix)"
PROMPTS = ["The river runs through the town.", "Once upon a time"]
PARAMS = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


def plain() -> list[str]:
    with LLM(method="none", dtype=DTYPE) as llm:
        return [one.text for one in llm.generate(PROMPTS, PARAMS)]


def drafted(llm: LLM) -> list[Completion]:
    """Complete the prompts until draft tokens are accepted, if the machine is busy."""
    got = []
    for _ in range(5):
        got += llm.generate(PROMPTS, PARAMS)
        if any(one.stats.accepted for one in got):
            return got[-len(PROMPTS) :]
    raise AssertionError("no draft token was accepted")


@pytest.mark.parametrize(
    ("draft", "method"),
    [
        (None, LOOKUPS),
        (bundled.draft(), PAIR),
        (bundled.head("eagle"), "auto(eagle, ngram, suffix)"),
    ],
)
def test_library_chooses_among_the_source_and_lookups(draft, method, unchecked):
    with LLM(bundled.target(), draft=draft, dtype=DTYPE) as llm:
        assert llm.method == method
        got = drafted(llm)
    assert [one.text for one in got] == plain()
    assert {one.method for one in got} == {method}


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ({"nodes": 2}, "lm"),
        ({"budget": "heuristic"}, "lm"),
        ({"rule": "rejection"}, "lm"),
        ({"rule": "same-text"}, PAIR),
        ({"budget": "adaptive", "rule": "match"}, PAIR),
    ],
)
def test_source_drafts_alone_with_another_budget_or_rule(options, method):
    assert method_of(DraftingOptions(**options), bundled.draft()) == method


def test_requests_share_the_source_of_the_default():
    """A head is the source of one member: requests that name it have it too."""
    with LLM(bundled.target(), draft=bundled.head("eagle"), dtype=DTYPE) as llm:
        assert (
            llm.session.speculators.label("eagle")
            == f"eagle from {bundled.head('eagle')}"
        )
        assert llm.session.speculators.label("ngram") == "ngram"
        cascade = SamplingParams(method="cascade(suffix, eagle)")
        assert llm.session.speculator(cascade).names == (), "it is one method"
        drafters = [
            llm.session.speculator(SamplingParams(method=name, nodes=3)).drafter
            for name in ("eagle", "auto", "cascade(suffix, eagle)")
        ]
    assert drafters[0] is drafters[1].members[0] is drafters[2].members[1]


def test_draft_model_of_another_tokenizer_is_a_member(tmp_path: Path, unchecked):
    with pytest.warns(UserWarning, match=TRANSLATED):
        llm = LLM(draft=NEAR.save(tmp_path), dtype=DTYPE)
    assert llm.method == PAIR
    first, *_ = llm.engine.drafter.members
    assert isinstance(first, CrossVocabularyDrafter)
    got = drafted(llm)
    assert [one.text for one in got] == plain()


def test_a_failing_member_fails_no_request(monkeypatch):
    def fail(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(LanguageModelDrafter, "propose", fail)
    with LLM(dtype=DTYPE) as llm, pytest.warns(RuntimeWarning, match="disk is gone"):
        got = drafted(llm)
    assert [one.text for one in got] == plain()


def test_trace_says_what_was_expected_of_each_method(unchecked):
    with LLM(dtype=DTYPE) as llm:
        traced = replace(PARAMS, trace=True)
        *_, answer = llm.generate(PROMPTS, traced)
        recording = Recording.of(llm, traced, answer)
        (alone,) = llm.generate(PROMPTS[0], replace(traced, method="lm"))
    written = Counter()
    for one in answer.rounds:
        written[one.method] += len(one.tokens)
        assert one.speeds["none"] == 1.0
        assert set(one.speeds) <= {"lm", "ngram", "suffix", "none"}
        assert one.method in one.speeds
    assert written == answer.stats.by_method
    assert any("lm" in one.speeds for one in answer.rounds)
    assert {(one.method, *one.speeds) for one in alone.rounds} == {("",)}
    values = json.loads(recording.as_json())
    assert Recording.from_json(json.dumps(values), "FILE") == recording
    for one in values["rounds"]:
        del one["method"], one["speeds"]  # as older versions have written them
    older = Recording.from_json(json.dumps(values), "FILE")
    assert (older.rounds[0].method, older.rounds[0].speeds) == ("", {})


def test_command_chooses_too(here):
    words = ("generate", PROMPTS[1], "--raw", "-t", "0", "--ignore-eos")
    answer = json.loads(here(*words, "--json", "--quiet").stdout)
    assert answer["method"] == PAIR
    assert set(answer["stats"]["by_method"]) <= {"lm", "ngram", "suffix", "none"}
    alone = json.loads(here(*words, "--json", "--quiet", "--method", "none").stdout)
    assert answer["text"] == alone["text"]


def test_server_chooses_too(unchecked):
    body = dict(prompt=PROMPTS[1], temperature=0, max_tokens=40, ignore_eos=True)
    with LLM(dtype=DTYPE) as llm, running(llm) as server:
        drafted(llm)
        answer = server.post("/v1/completions", **body)
        served = server.http.get("/speculation").json()
        off = dict(body, speculative={"method": "none"})
        alone = server.post("/v1/completions", **off)
    assert served["method"] == PAIR
    assert answer["choices"][0]["text"] == alone["choices"][0]["text"]


def test_drop_in_chooses_too(monkeypatch):
    loaded = hf.AutoModelForCausalLM.from_pretrained
    model, small = (
        loaded(path, dtype=torch.float32)
        for path in (bundled.target(), bundled.draft())
    )
    expected = model.generate(**ids(5), **greedy(16)).tolist()
    names = []
    find = loop.find_method

    def noted(name):
        names.append(name)
        return find(name)

    monkeypatch.setattr(loop, "find_method", noted)
    for drafter in (None, small):
        ours = model.generate(**ids(5), **greedy(16), drafter=drafter, **OURS)
        assert ours.tolist() == expected
    assert names == [LOOKUPS, PAIR]
