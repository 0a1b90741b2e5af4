"""`foreword tune method`: what it says and writes."""

import json
from importlib import import_module

import tiny_seq2seq
from foreword import bundled
from foreword.settings_file import DraftingFile
from foreword_lab.commands.tune import _file
from foreword_lab.tune.arms import Arm


def test_tune_method_writes_a_file_that_is_found(here, monkeypatch):
    monkeypatch.delenv("FOREWORD_TOML", raising=False)
    asked = "tune method --method ngram --minutes 0.1 --max-tokens 8 --json --report r.html".split()
    monkeypatch.setattr(import_module("foreword_lab.commands.tune"), "MOST_PROMPTS", 4)
    found = here(*asked, "--draft", str(bundled.draft()))
    assert found.returncode == 0, found.stderr
    values = json.loads(found.stdout)
    text = (here.folder / "foreword.toml").read_text()
    assert f'method = "{values["best"]["method"]}"' in text
    # a lookup needs no draft model, nor does plain decoding
    assert "draft =" not in text
    assert values["prompts"] == 4
    assert "<svg" in (here.folder / "r.html").read_text()
    answer = here("generate", "Hello", "--max-tokens", "4", "--json")
    assert json.loads(answer.stdout)["method"] == values["best"]["method"]
    refused = here(*asked, "--draft", str(tiny_seq2seq.saved("t5", here.folder / "t5")))
    assert refused.returncode == 2
    assert "none has the target's tokenizer" in refused.stderr
    unknown = here("tune", "method", "--rule", "blok")
    assert unknown.returncode == 2
    assert "Did you mean 'block'" in unknown.stderr


def test_file_names_a_draft_only_for_a_method_that_takes_one():
    lm = _file(None, "a/draft", Arm("lm", 8))
    assert lm == DraftingFile(target="bundled", draft="a/draft", method="lm", nodes=8)
    ruled = _file("b", None, Arm("lm", 8, "block"))
    assert ruled == DraftingFile(target="b", method="lm", rule="block", nodes=8)
    assert 'rule = "block"' in ruled.text()
    copied = _file("b", "a/draft", Arm("suffix", None))
    assert copied == DraftingFile(target="b", method="suffix")
