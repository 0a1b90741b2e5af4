"""`foreword tune layers`: what it says and writes, that it can be stopped, and what it
refuses.
"""

import json
import re
import signal
from pathlib import Path

import pytest

import tiny_seq2seq
from foreword import bundled
from foreword.cli.tune_method import _file
from foreword.draft.self_speculative.layers import read
from foreword.settings_file import DraftingFile
from foreword.tune.arms import Arm

SMALL = "--prompts 1 --max-tokens 8 --device cpu".split()


@pytest.fixture
def data(shell) -> Path:
    path = shell.folder / "data.jsonl"
    texts = [
        {
            "text": f"Count to {number}: one, two, three, four, and so on, up to {number}."
        }
        for number in range(9)
    ]
    chats = [
        {"messages": [{"role": "user", "content": f"Say {number} twice."}]}
        for number in range(3)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in (*texts, *chats)))
    return path


def test_report_and_a_mask_that_serves(here):
    found = here("tune", "layers", "--out", "mask.json", "--trials", "3", *SMALL)
    assert found.returncode == 0, found.stderr
    assert re.search(
        r"^measured\s+\d\.\d\dx plain decoding \(95%: [\d.]+ to [\d.]+\)",
        found.stdout,
        re.MULTILINE,
    )
    assert re.search(r"^trials\s+3\s*$", found.stdout, re.MULTILINE)
    mask = read(here.folder / "mask.json")
    said = found.stderr.splitlines()[-1]
    assert (
        said.startswith("no mask gives a speedup")
        or "use it with --method layers" in said
    )
    words = ("generate", "Hello", "-t", "0", "--max-tokens", "8", "--raw", "--no-stats")
    plain = here(*words, "--method", "none").stdout
    assert mask
    assert here(*words, "--method", "layers", "--draft", "mask.json").stdout == plain


@pytest.mark.slow
def test_a_search_is_stopped_and_goes_on(shell, data):
    words = [
        "tune",
        "layers",
        "--data",
        "data.jsonl",
        "--out",
        "mask.json",
        *SMALL,
        "--json",
    ]
    process = shell.start(*words, "--trials", "100000")
    said = ""
    for line in process.stderr:
        said += line
        if line.startswith("50 trials"):
            process.send_signal(signal.SIGINT)
            break
    out, err = shell.rest(process)
    assert process.returncode == 130, said + err
    assert "Traceback" not in err
    assert "holds the best mask so far" in err or json.loads(out)["over_plain"] is None
    tried = json.loads(out)
    assert tried["trials"] >= 50
    assert {name: tried[name] for name in ("attention", "mlp")} == json.loads(
        (shell.folder / "mask.json").read_text()
    )
    found = shell(*words, "--trials", "2", "--resume")
    assert found.returncode == 0, found.stderr
    facts = json.loads(found.stdout)
    assert facts["trials"] == 2
    assert facts["expected"] >= tried["expected"]
    low, mid, high = (facts["over_plain"][name] for name in ("low", "mid", "high"))
    assert 0 < low <= mid <= high
    assert facts["pays"] == (low > 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("--out", "mask.json", "--data", "nothing.jsonl"),
            "cannot read nothing.jsonl: no such file exists",
        ),
        (("--out", "mask.json", "--data", "bad.jsonl"), "bad.jsonl:1: not JSON"),
        (("--out", "mask.json", "--data", "few.jsonl"), "at least 2 texts"),
        (
            (
                "--out",
                "no/mask.json",
            ),
            "cannot write",
        ),
        (
            (
                "--out",
                "bad.jsonl",
            ),
            "cannot write bad.jsonl: it exists. Continue with '--resume'",
        ),
        (("--out", "mask.json", "--temperature", "-1"), "temperature must be"),
        (("--out", "mask.json", "--model", "nowhere/at/all"), "nowhere/at/all"),
    ],
)
def test_what_cannot_be_done_says_why_and_leaves_nothing(here, words, says):
    (here.folder / "bad.jsonl").write_text("{\n")
    (here.folder / "few.jsonl").write_text('{"text": "A single text."}\n')
    found = here("tune", "layers", *words)
    assert found.returncode in (1, 2)
    assert says in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr
    assert {path.name for path in here.folder.iterdir()} == {"bad.jsonl", "few.jsonl"}


def test_tune_method_writes_a_file_that_is_found(here, monkeypatch):
    monkeypatch.delenv("FOREWORD_TOML", raising=False)
    asked = "tune method --method ngram --minutes 0.1 --max-tokens 8 --json --report r.html".split()
    monkeypatch.setattr("foreword.cli.tune_method.MOST_PROMPTS", 4)
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
