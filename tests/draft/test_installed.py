"""Methods of other packages: a distribution's entry points `foreword.methods`."""

import json
from pathlib import Path

import pytest

import starter
from folders import install
from foreword import LLM, SamplingParams
from foreword.cli.common import early
from foreword.cli.methods import methods
from foreword.draft import METHODS, method
from foreword.errors import InvalidRequest, UnknownMethod

MODULE = """
from foreword.draft.base import Drafter, chosen
from foreword.registry import Method


class Echo(Drafter):
    about = Method("the last tokens again")

    def propose(self, batch, nodes):
        return chosen([(s.tokens[-4:] * n)[:n] for s, n in zip(batch.requests, nodes, strict=True)])
"""
ENTRIES = """
[foreword.methods]
echo = {name}:Echo
lm = {name}:Echo
gone = {name}:Gone
nowhere = {name}_nowhere:Echo
text = {name}:__doc__
"""
PROMPT = "one two three four one two three four one two three four"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed distribution: its module, and what an installer writes beside it."""
    monkeypatch.syspath_prepend(tmp_path)
    return install(tmp_path, "far_echoes", MODULE, ENTRIES)


@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_method_of_package_drafts_for_llm_and_for_request(package, heat):
    params = dict(temperature=heat, seed=4, max_tokens=32, ignore_eos=True)
    plain = LLM(starter.target(), method="none", nodes=3)
    (want,) = plain.generate(PROMPT, SamplingParams(**params))
    got = [
        *LLM(starter.target(), method="echo", nodes=3).generate(
            PROMPT, SamplingParams(**params)
        ),
        *plain.generate(PROMPT, SamplingParams(**params, method="echo", nodes=3)),
        *LLM(starter.target(), method="cascade(ngram, echo)", nodes=3).generate(
            PROMPT, SamplingParams(**params)
        ),
    ]
    assert [one.tokens for one in got] == [want.tokens] * 3
    assert [one.undrafted for one in got] == [None] * 3
    assert all(one.stats.accepted > 0 for one in got)
    assert want.stats.drafted == 0


def test_our_names_win(package):
    assert method("lm").__module__ == "foreword.draft.lm"
    assert method("echo").__module__ == package


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gone", "has no attribute"),
        ("nowhere", "No module named"),
        ("text", "is not a Drafter"),
    ],
)
def test_broken_package_is_named_when_its_method_is_asked_for(package, name, why):
    assert method("ngram")
    with pytest.raises(InvalidRequest, match=f"method '{name}' of the package .*{why}"):
        method(name)
    with pytest.raises(InvalidRequest, match="far-echoes"):
        LLM(starter.target(), method=name)


def test_names_of_packages_are_suggested_and_listed(package, capsys):
    with pytest.raises(UnknownMethod, match="Did you mean 'echo'"):
        method("ecoh")
    early.method("cascade(echo, lm)")
    methods(as_json=True)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows)[: len(METHODS)] == list(METHODS)
    assert rows["echo"]["summary"] == "the last tokens again"
    assert rows["echo"]["docs"] == "the package far-echoes"
    assert "has no attribute" in rows["gone"]["summary"]
    methods()
    assert "the last tokens again" in capsys.readouterr().out
