"""`foreword certify` at the command line: outputs, exit codes, refusals, the page."""

import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from broken_servers import IgnoresSeed, broken
from foreword.registry import METHODS
from foreword_lab.certify.report import MEANINGS, Certificate, Check, page
from serving import Running


def test_sound_pair_gives_a_table_and_both_files(here, tmp_path) -> None:
    done = here(
        *("certify", "--quick", "--method", "predicted"),
        *("--json", "proof.json", "--report", "proof.html"),
    )
    assert done.returncode == 0, done.stderr
    assert "same text: predicted" in done.stdout
    assert "Consistent up to" in done.stdout
    found = json.loads((tmp_path / "proof.json").read_text(encoding="utf-8"))
    assert found["status"] == "consistent"
    assert 0 < found["bound"] < 1
    assert found["subject"]["methods"] == ["predicted"]
    assert {"cpu", "cores"} <= found["machine"].keys()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00", found["date"])
    html = (tmp_path / "proof.html").read_text(encoding="utf-8")
    assert "same text: predicted" in html
    assert "<script" not in html
    assert not re.search(r"(src|href)=", html)


def test_fault_is_exit_code_1(here, monkeypatch, meddling) -> None:
    monkeypatch.setitem(METHODS, "meddling", meddling)
    done = here("certify", "--quick", "--method", "meddling", "--json", "-")
    found = json.loads(done.stdout)
    assert (done.returncode, found["status"]) == (1, "differs")
    faults = [one["name"] for one in found["checks"] if one["status"] == "differs"]
    assert "same text: meddling" in faults


@pytest.mark.slow
def test_server_is_certified_by_its_address(here, server: Running) -> None:
    with broken(server.url, IgnoresSeed()) as url:
        done = here("certify", "--quick", "--url", url, "--json", "-")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["subject"]["server"] == f"{url}/v1"
    status = {one["name"]: one["status"] for one in found["checks"]}
    assert status["the seed is honoured: completions"] == "differs"
    assert status["the seed is honoured: chat"] == "consistent"


ALONE = """
import sys
sys.modules.update(dict.fromkeys(("foreword", "torch", "transformers")))
from foreword_lab.__main__ import main
main()
"""


def ran(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_server_is_certified_without_torch(server: Running, tmp_path) -> None:
    file, report = tmp_path / "proof.json", tmp_path / "proof.html"
    outputs = *("--json", str(file)), *("--report", str(report))
    with broken(server.url, IgnoresSeed()) as url:
        command = [sys.executable, "-c", ALONE, "certify", "--quick", "--url", url]
        done = ran(*command, *outputs)
    assert done.returncode == 1, done.stderr
    assert done.stdout.strip().splitlines()[-1].startswith("Differs: ")
    assert json.loads(file.read_text(encoding="utf-8"))["status"] == "differs"
    assert "the seed is honoured" in report.read_text(encoding="utf-8")
    gone = ran(*command)
    assert (gone.returncode, gone.stdout) == (2, "")
    assert "cannot reach" in gone.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--url", "http://x", "-d", "a/a", "-d", "b/b"), "a model and a server at"),
        (("some/model", "--url", "http://x"), "a model and a server at once"),
        (("--key", "secret"), "cannot use '--key': it is the key of a server"),
        (("--url", "localhost:8000"), "it is not an address"),
        (("--url", "http://127.0.0.1:9", "--quick"), "cannot reach"),
        (("--method", "ngrm"), "Did you mean 'ngram'?"),
        (("--draft", "/no/such/folder"), "no such folder"),
        (("--report", "no/folder/proof.html"), "proof.html"),
        (("--minutes", "0"), "--minutes"),
    ],
)
def test_what_cannot_be_done_is_refused(here, words, said) -> None:
    done = here("certify", *words)
    assert done.returncode in (1, 2)
    assert said in " ".join(done.stderr.split())
    assert not done.stdout


class Reader(HTMLParser):
    """Collects the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.text = io.StringIO()
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)

    def handle_data(self, data) -> None:
        self.text.write(data)


def test_page_shows_every_status_and_no_markup_of_texts() -> None:
    hostile = '<img src=x onerror="alert(1)">'
    checks = tuple(
        Check(f"check {index}", status, hostile, {"first": hostile})
        for index, status in enumerate(MEANINGS)
    )
    found = Certificate(
        {"target": hostile}, "2026-01-01T00:00:00+00:00", 0, 1.0, {}, {}, checks
    )
    reader = Reader()
    reader.feed(page(found))
    assert "img" not in reader.tags
    shown = reader.text.getvalue()
    assert all(shown.count(status) >= 2 for status in MEANINGS)
    assert shown.count(hostile) == 1 + len(checks)
    assert found.verdict.startswith("Differs: 1 consistent, 1 numerics")
