"""`foreword demo | bench`: the figures have every row, and all texts are equal."""

import json
import re
from importlib import import_module
from xml.etree import ElementTree

import pytest

from foreword.registry import DEFAULT_METHOD, DEFAULT_WITH_DRAFT


def test_demo_shows_the_answers_and_draws_them(here, monkeypatch):
    # not by its dotted name: the package has a function of this name
    monkeypatch.setattr(import_module("foreword_lab.commands.demo"), "MAX_TOKENS", 28)
    found = here("demo", "--quick", "--svg", "demo.svg", "--html", "demo.html")
    assert found.returncode == 0, found.stderr
    rows = re.findall(r"^(\S+) .*(yes|no|other draw)\s*$", found.stdout, re.MULTILINE)
    names = ("plain", DEFAULT_METHOD, DEFAULT_WITH_DRAFT)
    assert rows[:3] == [(name, "yes") for name in names]
    assert rows[3][0] == "transformers.generate"
    assert found.stdout.count('{"name": "SearchOnewayFlight"') == 3
    drawn = "".join(ElementTree.parse(here.folder / "demo.svg").getroot().itertext())
    assert "SearchOnewayFlight" in drawn
    assert "http" not in drawn
    page = (here.folder / "demo.html").read_text(encoding="utf-8")
    assert page.count('"method": "lm"') == page.count('"method": "none"') == 2


FEW = "--limit-prompts 1 --max-tokens 4 --temperature 0".split()


def test_bench_writes_what_it_measured(here):
    words = (*FEW, *"--method ngram --json -".split())
    found = here("bench", *words, "--budget", "heuristic")
    report = json.loads(found.stdout)
    names = [row["name"] for row in report["rows"]]
    assert names == ["plain", "ngram", "transformers.generate"]
    assert report["settings"]["budget"] == "heuristic"
    assert report["settings"]["max_tokens"] == 4


def test_bench_names_exclusions_and_takes_sources(here, tmp_path):
    few = (*FEW, "--method", "retrieval")
    found = here("bench", *few)
    said = " ".join(found.stdout.split())
    assert "left out: retrieval (it needs a datastore, and none was given" in said
    (tmp_path / "texts.txt").write_text("The capital of France is Paris. " * 9)
    made = here("index", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "store"))
    assert made.returncode == 0, made.stderr
    source = ("--source", f"retrieval={tmp_path / 'store'}")
    report = json.loads(here("bench", *few, *source, "--json", "-").stdout)
    names = [row["name"] for row in report["rows"]]
    assert names == ["plain", "retrieval", "transformers.generate"]
    assert report["exclusions"] == {}
    wrong = here("bench", *few, "--source", "ngram=here")
    assert wrong.returncode == 2
    assert "where NAME is a measured row" in wrong.stderr


def test_bench_shows_where_a_round_goes(here):
    found = here("bench", *FEW, "--method", "none", "--where")
    assert found.returncode == 0, found.stderr
    steps = "propose score verify commit between target¹ draft¹ outside¹".split()
    assert re.search(" +".join(steps), found.stdout)


def test_bench_compares_forwards_with_the_memory(here, monkeypatch):
    monkeypatch.setattr("foreword_lab.bench.roofline.limit.QUICK_SECONDS", 0.3)
    found = here(*"bench limit --quick --inflate family --context 20 --json -".split())
    report = json.loads(found.stdout)
    assert (report["shape"], report["context"]) == ("family", 20)
    assert report["rows"][0]["nodes"] == 1


@pytest.mark.parametrize(
    "words",
    [
        ("demo", "--svg"),
        *(("bench", *kind, "--json") for kind in ((), ("limit",), ("rules",))),
    ],
    ids=" ".join,
)
def test_output_file_is_checked_before_measuring(here, monkeypatch, words):
    monkeypatch.setattr("foreword.model.Model.load", None)
    (here.folder / "file").write_text("words")
    found = here(*words, "file/new")
    assert (found.returncode, found.stdout) == (2, "")
    reason = "choose a path in an existing, writable folder"
    assert found.stderr == f"error: cannot write file/new: {reason}\n"


@pytest.mark.parametrize("kind", [(), ("limit",), ("batch", "1"), ("serve",)], ids=str)
def test_bench_measures_on_another_device_where_it_can(here, kind):
    found = here("bench", *kind, "--device", "cuda:77")
    assert found.returncode != 0
    assert "cannot use device 'cuda:77'" in " ".join(found.stderr.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--peers all --device cuda", "cannot use '--peers' with '--device'"),
        ("batch --peers all --device cuda", "cannot use '--peers' with '--device'"),
        ("serve --peers all --device cuda", "cannot use '--peers' with '--device'"),
        ("batch 1,x", "cannot read the sizes '1,x': it holds no list of numbers"),
        ("serve --concurrency 1,x", "'--concurrency' '1,x': it holds no list"),
        ("batch --at-least x", "cannot read '--at-least' 'x': it holds neither one"),
        ("batch --at-least 1,2,3", "cannot read '--at-least' '1,2,3'"),
        ("batch --at-least 0", "cannot read '--at-least' '0'"),
        ("batch --at-least 1,1", "cannot use two numbers of '--at-least' without"),
        ("rules --device cuda", "No such option: --device"),
        ("rules --context 5", "No such option: --context"),
        ("--nodes 3", "No such option: --nodes"),
        ("serve --method none", "No such option: --method"),
        ("batch 4 --plot x.png", "No such option: --plot"),
        ("limit --limit-prompts 3", "No such option: --limit-prompts"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_measurement_takes_its_own_options(here, words, said):
    found = here("bench", *words.split())
    assert (found.returncode, found.stdout) == (2, "")
    assert said in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("--limit --inflate llama-350m", "bench limit"),
        ("--quick --rules", "bench rules"),
        ("--batch 1,4", "bench batch 1,4,16,32"),
        ("--batch=1,4", "bench batch 1,4,16,32"),
        ("--serve", "bench serve"),
    ],
)
def test_bench_names_the_command_of_an_earlier_spelling(here, words, command):
    found = here("bench", *words.split())
    assert (found.returncode, found.stdout) == (2, "")
    assert f"Run `foreword {command}`" in " ".join(found.stderr.split())


def test_bench_refuses_what_it_does_not_know(here):
    for words in (
        ("--method",),
        ("--budget",),
        ("--prompts",),
        ("--peers",),
        ("limit", "--inflate"),
    ):
        found = here("bench", *words, "nonsense")
        assert found.returncode == 2
        assert "nonsense" in found.stderr
        assert "Traceback" not in found.stderr


def test_quiet_bench_writes_its_table_alone(here, unbarred):
    asked = "bench rules --limit-prompts 1 --max-tokens 4 -t 0 --nodes 1".split()
    found = here(*asked, "--quiet")
    assert found.returncode == 0
    assert found.stdout
    assert found.stderr == ""
    assert here(*asked).stderr


def test_batches_slower_than_asked_for_fail_the_command(here):
    asked = "bench batch 1 --limit-prompts 1 --max-tokens 2 -t 0 --method ngram"
    found = here(*asked.split(), "--at-least", "1000")
    assert found.returncode == 1
    assert "ngram" in found.stdout, "the table is shown all the same"
    said = " ".join(found.stderr.split())
    assert "slower than asked for: ngram at temperature 0 in batches of 1:" in said
    assert here(*asked.split(), "--at-least", "0.001").returncode == 0
