"""Registries: every name can be imported, a process and other packages add names."""

from pathlib import Path

import pytest

from folders import install
from foreword import LLM, SamplingParams, entries, registry
from foreword.entries import Registry
from foreword.errors import InvalidRequest, UnknownMethod
from foreword.method_name import MethodName, parsed, spelled
from foreword.options import DraftingOptions
from foreword.registry import BUDGETS, METHODS, OWN_METHODS, RULES

REGISTRIES = [one for one in vars(registry).values() if isinstance(one, Registry)]
MODULE = """
from foreword.budget import FixedBudget
from foreword.verify.base import Rule
from foreword.verify.match import follow, match


class Three(FixedBudget):
    def __init__(self):
        super().__init__(3)


FIRST = Rule(name="first", verify=match, follow=follow, shares_noise=True, lists="distinct", keeps="same-text")
"""
ENTRIES = """
[foreword.rules]
first = {name}:FIRST
match = {name}:FIRST
[foreword.budgets]
three = {name}:Three
none = {name}:FIRST
"""
PROMPT = "one two three four one two three four one two three four"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install a distribution with a rule and a budget; return its module."""
    monkeypatch.syspath_prepend(tmp_path)
    return install(tmp_path, "extras", MODULE, ENTRIES)


@pytest.mark.parametrize("one", REGISTRIES, ids=lambda one: one.kind)
def test_every_name_is_imported_and_known(one):
    base = entries.imported(one._base)
    assert [name for name in one.own if not entries._is(one[name], base)] == []
    assert list(one)[: len(one.own)] == list(one.own)
    assert all(name in one for name in one.own)
    assert "absent" not in one


def test_a_method_names_itself_as_the_registry_does():
    assert {name: METHODS[name].about for name in METHODS.own} == OWN_METHODS
    assert {name: RULES[name].name for name in RULES.own} == {
        name: name for name in RULES.own
    }


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(
        UnknownMethod, match=r"such budget exists\. Did you mean 'confidence'"
    ):
        BUDGETS.check("confidense")
    with pytest.raises(InvalidRequest, match="rule 3: it is not a name"):
        RULES.find(3)
    RULES.check("same-text", *registry.GUARANTEES)


def test_a_process_adds_a_name(monkeypatch):
    monkeypatch.setitem(METHODS, "again", METHODS["ngram"])
    assert [*METHODS][-1] == "again"
    with LLM(method="again", nodes=4) as llm:
        (answer,) = llm.generate(
            PROMPT, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        )
    assert answer.stats.accepted > 0


def test_a_package_adds_a_rule_and_a_budget(package):
    assert [*RULES][-1] == "first"
    params = SamplingParams(temperature=0.7, seed=4, max_tokens=24, ignore_eos=True)
    with LLM(method="ngram", nodes=3) as llm:
        (plain,) = llm.generate(PROMPT, params)
    with LLM(method="ngram", rule="first", budget="three") as llm:
        (found,) = llm.generate(PROMPT, params)
    assert found.tokens == plain.tokens
    assert found.stats.accepted == plain.stats.accepted > 0
    assert RULES["match"].name == "match"


def test_what_is_no_budget_is_refused_by_the_package(package):
    with pytest.raises(InvalidRequest, match=r"extras: .*FIRST is not a DraftBudget"):
        BUDGETS.find("none")


def test_names_of_methods_are_parsed():
    assert parsed(" cascade( suffix ,cascade(ngram, lm)) ") == MethodName(
        "cascade",
        (
            MethodName("suffix"),
            MethodName("cascade", (MethodName("ngram"), MethodName("lm"))),
        ),
    )
    assert (
        str(parsed("cascade(suffix,lm)"))
        == spelled("cascade( suffix,lm )")
        == "cascade(suffix, lm)"
    )
    assert parsed("cascade").members is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("lm(", "not a name or call"),
        ("cascade(lm,)", "it is not a name"),
        ("cascade(mm)", "no such method"),
        (" ", "not a name"),
    ],
)
def test_names_that_cannot_be_read_are_refused(name, reason):
    with pytest.raises((InvalidRequest, UnknownMethod), match=reason):
        parsed(name)


def test_own_names_are_checked_without_a_look_at_other_packages(monkeypatch):
    monkeypatch.setattr(entries, "entry_points", None)
    options = DraftingOptions(
        method="cascade(suffix, lm)", rule="match", budget="confidence"
    )
    assert options.method == "cascade(suffix, lm)"
    RULES.check("same-text", *registry.GUARANTEES)
