"""`foreword methods | inspect | env`: the same facts for people and for programs."""

import json
import re

import pytest

from foreword import bundled
from foreword.cli.inspect import _table
from foreword.draft import METHODS, method
from foreword.model.cost import Cost
from foreword.model.executors.registry import BACKENDS
from foreword.native import forward, sampling
from foreword.registry import AUTO, OWN_METHODS, Method


def about(name: str) -> Method:
    """What is known of a method; the members of `auto` depend on the draft."""
    return OWN_METHODS[name] if name == AUTO else method(name).about


def test_methods_are_those_of_the_registry(here):
    rows = json.loads(here("methods", "--json").stdout)
    found = {row["name"]: (row["summary"], row["draft"], row["needed"]) for row in rows}
    known = {name: about(name) for name in METHODS}
    assert found == {n: (one.summary, one.takes, one.needs) for n, one in known.items()}
    needed = {row["name"]: row["draft"] for row in rows if row["needed"]}
    assert needed["lm"] == "a draft model"
    assert needed["retrieval"] == "a datastore"
    optional = {row["name"] for row in rows if row["takes_draft"] and not row["needed"]}
    assert {"suffix", "layers"} <= optional
    assert not {"none", "ngram"} & (optional | needed.keys())
    table = here("methods").stdout  # in which long summaries are broken
    beginnings = [" ".join(row["summary"].split()[:4]) for row in rows]
    assert [words for words in beginnings if words not in table] == []


def test_env_describes_the_machine_and_whether_our_c_code_runs(here):
    facts = json.loads(here("env", "--json", FOREWORD_DEBUG="0").stdout)
    assert facts["threads"] == 1
    assert facts["variables"]["FOREWORD_DEBUG"] == "0"
    versions = {"foreword", "python", "torch", "transformers", "tokenizers"}
    assert versions | {"cpu", "amx_bf16", "avx2", "cuda_devices"} <= facts.keys()
    assert facts["native_code"].startswith(sampling.reason() or "compiled (")
    assert ("AMX" in facts["native_code"]) == forward.amx()


@pytest.fixture
def recompiled():
    """What was compiled in this process is forgotten, and afterwards found again."""
    sampling._compiled.cache_clear()
    yield
    sampling._compiled.cache_clear()


@pytest.mark.filterwarnings("ignore:C code is off")
def test_env_names_a_compiler_that_is_missing(here, recompiled):
    facts = json.loads(here("env", "--json", CC="/nonexistent").stdout)
    assert "the C compiler '/nonexistent'" in facts["native_code"]


def test_compilation_is_announced(here, tmp_path, recompiled):
    found = here("env", CC="false", XDG_CACHE_HOME=str(tmp_path))
    assert "compiling sampling.c for this machine, once; it may" in found.stderr
    sampling._compiled.cache_clear()
    assert "compiling" not in here("env").stderr


def test_inspect_names_the_backend_and_the_reason(here):
    ran = here("inspect", "--draft", str(bundled.draft()), "--json")
    facts = json.loads(ran.stdout)
    assert (facts["mode"], facts["dtype"]) == ("tree", "bfloat16")
    assert facts["parameters"] == 26_223_104
    assert facts["backend"] in BACKENDS
    assert facts["same_vocabulary"] is True
    assert facts["default_method"] == "auto(lm, ngram, suffix)"
    assert facts["milliseconds"]["1"] > 0
    assert facts["milliseconds_after"] > 0
    assert (facts["milliseconds_per_token_of_context"] or 0) >= 0
    assert facts["milliseconds_per_sequence"] >= 0
    assert facts["why"]


def test_backend_option(here):
    exact = ("--dtype", "float32", "--backend")
    facts = json.loads(here("inspect", *exact, "cache", "--json").stdout)
    assert (facts["backend"], facts["mode"]) == ("cache", "cache")
    found = here("generate", "Hello", *exact, "native")
    assert (found.returncode, found.stdout) == (1, "")
    words = "cannot run this model on backend 'native': it is made for bfloat16 on CPU"
    assert words in " ".join(found.stderr.split())


def test_inspect_shows_what_passes_cost(here):
    said = here("inspect").stdout
    assert re.search(r"^tokens read +ms +vs\. one token ", said, re.MULTILINE)
    assert re.search(r"^ +1 +[\d.]+ +1\.00×", said, re.MULTILINE)


@pytest.mark.parametrize(("context", "shown"), [(32_768, "1,128"), (1_100, "1,084")])
def test_inspect_shows_what_a_longer_text_adds_within_the_context(context, shown):
    cost = Cost({1: 0.001, 16: 0.002}, 128, per_token=1e-6)
    assert _table(cost, context).columns[-1].head == f"ms after {shown} tokens"


def test_inspect_shows_nothing_that_was_not_measured():
    headers = [column.head for column in _table(Cost({1: 0.001}, 128), 1024).columns]
    assert headers == ["tokens read", "ms", "vs. one token"]


def test_inspect_counts_the_tokens_that_differ(here):
    other = here.folder / "other"
    other.mkdir()
    for file in bundled.draft().iterdir():
        if file.suffix != ".safetensors":
            (other / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    found = here("inspect", "--draft", "other")
    assert found.returncode == 0
    assert "2 tokens differ" in found.stdout
    assert "tli or slem" in found.stdout
    assert "auto(lm, ngram, suffix)" in found.stdout


def test_doctor_reports_acceptance_and_fails_without_a_draft(here):
    few = ("--prompts", "1", "--max-tokens", "8")
    found = here("doctor", *few)
    assert "for the method lm" in found.stdout
    shares = r"accepted: \d+% at temperature 0, \d+% at temperature 1"
    assert re.search(f"first draft tokens {shares}", found.stdout)
    facts = json.loads(here("doctor", *few, "--json").stdout)
    assert facts["method"] == "lm"
    assert here("doctor", "nowhere/at/all", *few).returncode == 1


@pytest.fixture
def few_tokens(monkeypatch):
    """Enough of each prompt: wrong weights are wrong after every token."""
    monkeypatch.setattr("foreword.cli.common.divergence.LONGEST", 32)


def test_inspect_measures_divergence_of_quantized_weights(here, few_tokens):
    facts = json.loads(here("inspect", "--weights", "int8", "--json").stdout)
    assert (facts["weights"], facts["backend"]) == ("int8", "native")
    domains = {"in-domain", "in-domain: translation", "out-of-domain"}
    assert domains < facts["kl_divergence"].keys()
    assert all(0 < nats < 0.01 for nats in facts["kl_divergence"].values())


@pytest.mark.slow
def test_inspect_measures_divergence_of_quantized_kv_in_long_texts(here, few_tokens):
    facts = json.loads(here("inspect", "--kv", "int8", "--json").stdout)
    assert (facts["kv"], facts["backend"]) == ("int8", "native")
    found = facts["kl_divergence"]
    late = "in-domain, after 511 to 1,023 tokens"
    assert {"in-domain", late, f"out-of-{late.removeprefix('in-')}"} < found.keys()
    assert all(0 < nats < 0.01 for nats in found.values())
    assert found["in-domain"] < found[late]


def test_inspect_quantizes_on_the_native_backend_only(here):
    refused = here("inspect", "--weights", "int8", "--backend", "pool")
    assert refused.returncode == 2
    assert "only backend 'native' has it" in " ".join(refused.stderr.split())
