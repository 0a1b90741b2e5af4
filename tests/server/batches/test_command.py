"""`foreword batch`: a file of requests is answered once, whatever kills the program."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grids import slow_case
from requested import answers, chat, texts, written
from waiting import wait_for

COUNT = 40


def test_answers_and_errors_are_written_and_errors_asked_again(here):
    written(here.folder / "in.jsonl", chat(0), chat(1, n=5), chat(2, temperature=-1))
    words = ("batch", "in.jsonl", "out.jsonl", "--slots", "1")
    ended = here(*words, "--json")
    assert ended.returncode == 1
    summary = json.loads(ended.stdout)
    assert (summary["completed"], summary["failed"], summary["kept"]) == (2, 1, 0)
    first = answers((here.folder / "out.jsonl").read_text())
    assert {name: one["status_code"] for name, one in first.items()} == {
        "c0": 200,
        "c1": 200,
        "c2": 400,
    }
    written(here.folder / "in.jsonl", chat(0), chat(1, n=5), chat(2))
    ended = here(*words)
    assert ended.returncode == 0, ended.stderr
    assert "3 answers in out.jsonl, 2 of them before, 0 failed" in ended.stderr
    second = answers((here.folder / "out.jsonl").read_text())
    assert second["c0"] == first["c0"]
    assert second["c2"]["status_code"] == 200


def test_bad_lines_are_refused_before_anything_is_written(here):
    written(here.folder / "in.jsonl", chat(0), chat(0))
    ended = here("batch", "in.jsonl", "out.jsonl")
    assert ended.returncode == 2
    assert "line 2: another line has the custom_id 'c0'" in ended.stderr
    assert not (here.folder / "out.jsonl").exists()


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, slow_case(signal.SIGINT)])
def test_run_goes_on_after_a_kill_with_the_same_texts(tmp_path, sign):
    requests = [chat(number, max_tokens=32, temperature=1) for number in range(COUNT)]
    file = written(tmp_path / "in.jsonl", *requests)
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    words = [sys.executable, "-m", "foreword", "batch", str(file), "--slots", "2"]
    subprocess.run([*words, str(whole)], check=True, capture_output=True)
    with subprocess.Popen([*words, str(cut)], stderr=subprocess.PIPE) as process:
        wait_for(lambda: lines(cut) >= 3, "three answers", process)
        process.send_signal(sign)
        process.communicate(timeout=60)
    assert process.returncode == (-sign if sign == signal.SIGKILL else 130)
    assert 3 <= lines(cut) < COUNT
    done = subprocess.run([*words, str(cut), "--json"], capture_output=True, check=True)
    assert json.loads(done.stdout)["kept"] >= 3
    assert texts(cut.read_text()) == texts(whole.read_text())
    assert len(texts(cut.read_text())) == COUNT
