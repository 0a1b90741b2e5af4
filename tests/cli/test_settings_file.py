"""`foreword.toml`: found, applied where nothing is named, refused by name."""

import pytest

from foreword import LLM, InvalidRequest, UnknownMethod
from foreword.settings_file import settings_for

GOOD = '# a comment\n[drafting]\ntarget = "bundled"\nmethod = "ngram"\nnodes = 3\n'


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREWORD_TOML", raising=False)
    return tmp_path


def test_file_is_found_where_nothing_is_named(here):
    (here / "foreword.toml").write_text(GOOD)
    with LLM() as llm:
        assert llm.method == "ngram"
        assert llm.engine.budget.count == 3
    with LLM(method="lm") as llm:
        assert llm.method == "lm"
    with LLM(nodes=5) as llm:
        assert (llm.method, llm.engine.budget.count) == ("lm", 5)
    assert settings_for("another/model") == {}


def test_environment_names_another_file_or_none(here, monkeypatch):
    (here / "foreword.toml").write_text(GOOD)
    monkeypatch.setenv("FOREWORD_TOML", "")
    assert settings_for(None) == {}
    (here / "other.toml").write_text('[drafting]\ntarget = "a/b"\ndraft = "c/d"\n')
    monkeypatch.setenv("FOREWORD_TOML", str(here / "other.toml"))
    assert settings_for("a/b") == {"draft": "c/d"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[drafting", "cannot use"),
        ("[drafting]\n", "it names no 'target'"),
        ('[drafting]\ntarget = "a"\nmetod = "lm"\n', "Did you mean 'method'?"),
        ('[drafting]\ntarget = "a"\nzzz = "lm"\n', "Use target, draft"),
        ('[drafting]\ntarget = "a"\nnodes = "4"\n', "Give a number"),
        ("[drafting]\ntarget = 5\n", "Give a text"),
        ('[draft]\ntarget = "a"\n', "It has one table, [drafting]"),
    ],
)
def test_damaged_file_is_refused_by_name(here, text, said):
    (here / "foreword.toml").write_text(text)
    with pytest.raises(InvalidRequest) as caught:
        LLM()
    assert str(caught.value).startswith("cannot use foreword.toml: ")
    assert said in str(caught.value)


def test_unknown_method_of_the_file_is_an_error(here):
    (here / "foreword.toml").write_text(GOOD.replace("ngram", "ngramm"))
    with pytest.raises(UnknownMethod, match="Did you mean 'ngram'"):
        LLM()
