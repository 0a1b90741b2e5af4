"""`foreword simulate` at the command line: outputs, and refusals in our words."""

import json
import socket
from pathlib import Path

import pytest

from command import Here, run_apart

COSTS = {
    "forward": {"1": 0.25, "5": 1.25},
    "request": 0.125,
    "tokens": [0.5, 0.5],
    "draft_tokens": 1.0,
}
LINE = {"arrival": 0.5, "prompt_tokens": 4, "answer_tokens": 3}


@pytest.fixture
def costs(tmp_path: Path) -> str:
    (tmp_path / "costs.json").write_text(json.dumps(COSTS))
    return "costs.json"


def lines(*requests: dict | str) -> str:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in requests]
    return "\n".join(texts)


def test_trace_is_simulated_to_json(here: Here, costs: str, tmp_path: Path) -> None:
    plain = {**COSTS, "tokens": 1.0, "draft_tokens": 0}
    (tmp_path / "plain.json").write_text(json.dumps(plain))
    late = {**LINE, "arrival": 9, "answer_tokens": 1, "acceptance": 0.5}
    (tmp_path / "trace.jsonl").write_text(lines(late, "", LINE))
    done = here(
        *("simulate", "--costs", "plain.json", "--trace", "trace.jsonl"),
        *("--replicas", "1,2", "--json"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["load"] == {"trace": "trace.jsonl", "requests": 2, "seed": 0}
    (one, two) = found["rows"]
    # 0.5 and on the way 0.125; four rows, then two rounds of one row
    assert one["first_token"][0] == 1.125
    assert one["answer"][0] == pytest.approx((1.625 + 1.125) / 2)
    assert one["seconds"] == 10.125 - 0.5
    assert one["tokens"] == 4
    assert (one["rounds"], one["refused"]) == (4, 0)
    assert (one["extrapolated"], two["extrapolated"]) == (False, True)
    assert two["utilisation"] == one["utilisation"] / 2


def test_table_names_what_is_extrapolated(here: Here, costs: str) -> None:
    done = here(
        *("simulate", "--costs", costs, "--clients", "8", "--measured", "2"),
        *("--requests", "20", "--answer-tokens", "8-16", "--replicas", "1,2,1000"),
    )
    assert done.returncode == 0, done.stderr
    assert "clients 8, prompt tokens 64, answer tokens 8-16" in done.stdout
    assert done.stdout.count("measured ") == 3
    rows = [line for line in done.stdout.splitlines() if "extrapolated " in line]
    assert len(rows) == 1
    assert "1,000" in rows[0]
    assert "measured with 2 replicas" in done.stdout


def test_saved_costs_are_read_again(here: Here, costs: str, tmp_path: Path) -> None:
    load = ("--rate", "3", "--requests", "9", "--json")
    first = here("simulate", "--costs", costs, "--save", "copy.json", *load)
    again = here("simulate", "--costs", "copy.json", *load)
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    assert json.loads(first.stdout)["costs"] == json.loads(
        (tmp_path / "copy.json").read_text()
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "it is not JSON"),
        ("[]", "it holds list"),
        ("{}", "it has no forward"),
        ('{"forward": {}}', "'forward' is empty"),
        ('{"forward": [1]}', "'forward' is not a table"),
        ('{"forward": {"one": 1}}', "'forward' is not a table"),
        ('{"forward": {"0": 1}}', "a number of rows is 0"),
        ('{"forward": {"1": -1}}', "forward of 1 rows is -1"),
        ('{"forward": {"1": 0}}', "forward of 1 rows takes 0 seconds"),
        ('{"forward": {"1": NaN}}', "forward of 1 rows is nan"),
        ('{"forward": {"1": true}}', "forward of 1 rows is True"),
        ('{"forward": {"1": 1}, "speed": 1}', "unknown fields speed"),
        ('{"forward": {"1": 1}, "draft": -1}', "draft is -1"),
        ('{"forward": {"1": 1}, "round": Infinity}', "round is inf"),
        ('{"forward": {"1": 1}, "sequence": "1"}', "sequence is '1'"),
        ('{"forward": {"1": 1}, "slots": 0}', "slots is 0"),
        ('{"forward": {"1": 1}, "chunk": 1.5}', "chunk is 1.5"),
        ('{"forward": {"1": 1}, "tokens": 0.5}', "tokens is 0.5"),
        ('{"forward": {"1": 1}, "tokens": [0.5]}', "add up to 0.5"),
        ('{"forward": {"1": 1}, "tokens": [2, -1]}', "a share of tokens is 2"),
    ],
)
def test_costs_that_cannot_be(here: Here, tmp_path: Path, given, said) -> None:
    (tmp_path / "bad.json").write_text(given)
    done = here("simulate", "--costs", "bad.json", "--clients", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "bad.json" in done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("\n", "trace.jsonl: it is empty"),
        ("x", "line 1 of trace.jsonl: it is not JSON"),
        (lines(LINE, {"arrival": 1}), "line 2 of trace.jsonl: it has no prompt_tokens"),
        (lines({**LINE, "user": 1}), "unknown fields user"),
        (lines({**LINE, "arrival": -1}), "arrival is -1"),
        (lines({**LINE, "arrival": float("nan")}), "arrival is nan"),
        (lines({**LINE, "prompt_tokens": 0}), "prompt_tokens is 0"),
        (lines({**LINE, "answer_tokens": 1.5}), "answer_tokens is 1.5"),
        (lines({**LINE, "acceptance": 1.5}), "acceptance is 1.5"),
    ],
)
def test_traces_that_cannot_be(here: Here, costs: str, tmp_path, given, said) -> None:
    (tmp_path / "trace.jsonl").write_text(given)
    done = here("simulate", "--costs", costs, "--trace", "trace.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


FILE = ("--costs", "costs.json")
ONE = (*FILE, "--clients", "1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--clients", "1"), "give either '--costs' or '--from-server'"),
        (FILE, "give one of '--trace', '--clients' and '--rate'"),
        ((*ONE, "--rate", "2"), "give one of '--trace'"),
        ((*FILE, "--rate", "-1"), "cannot use '--rate' -1.0"),
        ((*FILE, "--rate", "nan"), "cannot use '--rate' nan"),
        ((*ONE, "--key", "k"), "it is the key of a server"),
        ((*ONE, "--prompt-tokens", "9-3"), "cannot read '--prompt-tokens' '9-3'"),
        ((*ONE, "--answer-tokens", "many"), "cannot read '--answer-tokens' 'many'"),
        ((*ONE, "--replicas", "x"), "cannot read '--replicas' 'x'"),
        ((*ONE, "--replicas", "0"), "each must be from 1 to"),
        (
            (*FILE, "--trace", "t.jsonl", "--requests", "3"),
            "cannot use '--requests' with '--trace'",
        ),
        (("--costs", "none.json", "--clients", "1"), "cannot read none.json"),
        ((*FILE, "--trace", "none.jsonl"), "cannot read none.jsonl"),
        (("--from-server", "localhost", "--clients", "1"), "Begin it with http://"),
        ((*ONE, "--save", "no/where"), "cannot write no/where"),
    ],
)
def test_options_that_cannot_be(here: Here, costs: str, words, said) -> None:
    done = here("simulate", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_server_that_is_not_there(here: Here) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = here("simulate", "--from-server", url, "--clients", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot reach {url}/metrics" in done.stderr


def test_no_model_library_is_imported(costs: str, tmp_path: Path) -> None:
    words = ("simulate", "--costs", costs, "--clients", "1", "--json")
    (ended,) = run_apart([words], tmp_path)
    assert ended.code == 0
    assert "torch" not in ended.heavy
