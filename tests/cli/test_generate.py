"""`foreword generate`: the library's text on stdout and nothing else there."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

import foreword
import tiny_long
import tiny_seq2seq
from asking import user
from command import SOURCE
from foreword import InvalidRequest, SamplingParams
from foreword.sampling.noise import seed_of

QUESTION = 'Define the word "gasolene".'
LONG = "--temperature 0 --max-tokens 900 --method none --color"
ENDLESS = ("generate", QUESTION, *LONG.split())
"""At temperature 0 the small model repeats itself: more than a pipe holds."""
PLAIN = ("--method", "none")
"""Loads no draft model, where the text is not about drafting."""


def unstyled(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_process_reads_a_pipe_and_never_waits_for_garbage_collection(tmp_path, llm):
    """A process of its own: the library's text, one line on stderr, no search."""
    code = (
        "import gc, sys; from foreword.cli import main\n"
        "full = []\n"
        "gc.callbacks.append(lambda phase, about: (phase, about['generation']) == "
        "('start', 2) and full.append(0))\n"
        "sys.argv = ['foreword', 'generate', '-', '--seed', '7', '--max-tokens', '40']\n"
        "try: main()\n"
        "finally: print(len(full), file=sys.stderr)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        input=QUESTION,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = llm.chat([user(QUESTION)], SamplingParams(seed=7, max_tokens=40))
    assert found.stdout == expected.text + "\n"
    stats, collections = found.stderr.splitlines()
    assert f"{len(expected.tokens)} tokens" in stats
    assert "seed 7" in stats
    assert collections == "0"
    assert "\x1b" not in found.stdout + found.stderr


def test_json_agrees_with_itself_and_the_library(here, unbarred, llm):
    (here.folder / "prompt.txt").write_text("Once upon a time", encoding="utf-8")
    words = "--raw --prompt-file prompt.txt --seed 3 --max-tokens 48".split()
    found = here("generate", *words, "--stop", " the", "--json", "--no-stats")
    params = SamplingParams(seed=3, max_tokens=48, stop=(" the",))
    expected = llm.generate("Once upon a time", params)[0]
    answer = json.loads(found.stdout)
    assert found.stderr == ""
    assert (answer["text"], answer["seed"]) == (expected.text, 3)
    assert answer["tokens"] == expected.tokens
    assert answer["finish_reason"] == expected.finish_reason
    assert "".join(piece["text"] for piece in answer["pieces"]) == answer["text"]
    assert [piece["token"] for piece in answer["pieces"]] == answer["tokens"]
    assert {piece["origin"] for piece in answer["pieces"]} <= {"accepted", "bonus"}
    assert answer["stats"]["tokens"] == len(answer["tokens"])


def test_the_line_of_figures_names_the_methods_that_wrote(here):
    words = "--method auto(lm) -t 0 --max-tokens 24".split()
    found = here("generate", QUESTION, *words)
    assert " by lm" in found.stderr


def test_colour_adds_styles_and_changes_no_character(here, unbarred, llm):
    words = "--seed 7 --max-tokens 40 --nodes 4 --color".split()
    found = here("generate", QUESTION, *words)
    expected = llm.chat([user(QUESTION)], SamplingParams(seed=7, max_tokens=40))
    assert "\x1b[32m" in found.stdout
    assert unstyled(found.stdout) == expected.text + "\n"
    assert "accepted draft tokens" in found.stderr.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["x", "--method", "nun"], 2, "none"),
        (["x", "--temperature", "-1"], 2, "temperature must be in [0, 100]"),
        (["-"], 2, "the prompt is empty"),
        (["x", "--model", "./nowhere"], 1, "./nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_one_line(here, words, code, said):
    found = here("generate", *words)
    assert (found.returncode, found.stdout) == (code, ""), found.stderr
    assert found.stderr.startswith("error: ")
    assert found.stderr.count("\n") == 1
    assert said in found.stderr


def test_last_line_end_of_a_file_is_dropped(here):
    """Each pair of (line end, source of the text), and one answer for each text."""
    words = ("-t", "0", "--max-tokens", "4", "--no-stats", *PLAIN)
    for end, inner in (("\n", "\n"), ("\r\n", "\r\n"), ("", "\n")):
        text = f"Who wrote{inner}Hamlet?"
        (here.folder / "prompt.txt").write_bytes((text + end).encode())
        answer = here("generate", text, *words).stdout
        assert answer.strip()
        assert here("generate", "-", *words, typed=text + end).stdout == answer, end
        assert here("generate", "-f", "prompt.txt", *words).stdout == answer, end


def test_raw_text_is_taken_as_it_is(here):
    words = ("--raw", "--json", "--max-tokens", "2", "--no-stats", *PLAIN)
    lengths = [
        json.loads(here("generate", "-", *words, typed=text).stdout)["prompt_tokens"]
        for text in ("one two", "one two\n")
    ]
    assert lengths[0] + 1 == lengths[1]


def test_options_reach_the_request(here, llm):
    words = """
        --seed 5 --max-tokens 16 --min-tokens 9 --typical-p 0.9 --top-k 50
        --frequency-penalty 0.5 --presence-penalty 0.3 --repetition-penalty 1.1
        --logit-bias 300=2.5 --bad-word the --ignore-eos --tenant me
        --prediction @said.txt --logprobs 2 --json --no-stats
    """
    (here.folder / "said.txt").write_text("a text that may come")
    params = SamplingParams(
        seed=5,
        max_tokens=16,
        min_tokens=9,
        typical_p=0.9,
        frequency_penalty=0.5,
        presence_penalty=0.3,
        top_k=50,
        repetition_penalty=1.1,
        logit_bias={300: 2.5},
        bad_words="the",
        ignore_eos=True,
        tenant="me",
        logprobs=2,
    )
    found = json.loads(here("generate", QUESTION, *words.split()).stdout)
    expected = llm.chat([user(QUESTION)], params)
    assert (found["text"], found["tokens"]) == (expected.text, expected.tokens)
    usual = llm.chat([user(QUESTION)], SamplingParams(seed=5, max_tokens=16))
    assert expected.tokens != usual.tokens
    assert [one["token"] for one in found["logprobs"]] == expected.tokens
    assert {len(one["top"]) for one in found["logprobs"]} == {2}


def test_several_answers_are_those_of_their_seeds(here, llm):
    words = ("--seed", "5", "--max-tokens", "8", "--n", "2", "--json", "--no-stats")
    lines = here("generate", QUESTION, *words).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    seeds = [one["seed"] for one in found]
    assert seeds == [5, seed_of(5, 1)]
    expected = [
        llm.chat([user(QUESTION)], SamplingParams(seed=s, max_tokens=8)) for s in seeds
    ]
    assert [one["tokens"] for one in found] == [one.tokens for one in expected]


def test_what_ended_an_answer_is_told_apart(here):
    words = ("generate", "Define the word gasolene.", "-t", "0", "--max-tokens", "200")
    whole = json.loads(here(*words, "--json", "--no-stats").stdout)
    assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", None)
    stop = whole["text"][5:9]
    assert "ended by end of text" in here(*words).stderr
    cut = here(*words, "--stop", "\x00", "--stop", stop, "--json")
    assert json.loads(cut.stdout)["stop_reason"] == stop
    assert f"ended by stop string {stop!r}" in cut.stderr
    cut = here("generate", "x", "--max-tokens", "1", *PLAIN)
    assert "ended by length" in cut.stderr


@pytest.mark.parametrize("command", [("generate", "-"), ("chat",)])
def test_closed_standard_input_is_said(here, command):
    found = here(*command, typed=None)
    assert (found.returncode, found.stdout) == (2, "")
    assert "cannot read standard input: it is closed" in found.stderr


def test_debug_shows_the_traceback(here):
    with pytest.raises(InvalidRequest, match="temperature must be"):
        here("--debug", "generate", "x", "--temperature", "-1")


def test_usage_is_checked_before_anything_is_loaded(here):
    (here.folder / "latin.txt").write_bytes(b"caf\xe9")
    for words, said in (
        (("x", "--raw", "--system", "y"), "--system"),
        (("x", "-f", "latin.txt"), "not both"),
        (("-f", "latin.txt"), "not UTF-8"),
        (("-f", "missing.txt"), "missing.txt"),
    ):
        found = here("generate", *words)
        assert found.returncode == 2
        assert said in found.stderr


def test_ctrl_c_keeps_what_is_written(shell, llm):
    process = shell.start(*ENDLESS)
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, err = shell.rest(process)
    params = SamplingParams(temperature=0, max_tokens=900)
    whole = llm.chat([user(QUESTION)], params).text
    assert process.returncode == 130
    text = unstyled(first + rest)
    assert whole.startswith(text.removesuffix("\n"))
    assert 0 < len(text) < len(whole)
    assert rest.endswith("\n")
    assert "interrupted" in err
    assert "Traceback" not in err


def test_job_in_the_background_ends_by_sigterm_alone(shell):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = shell.start(*ENDLESS)
    signal.signal(signal.SIGINT, before)
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    process.stdout.read(100)
    process.send_signal(signal.SIGTERM)
    shell.rest(process)
    assert process.returncode == -signal.SIGTERM


def test_a_reader_who_leaves_is_no_trouble(shell):
    process = shell.start(*ENDLESS)
    process.stdin.close()
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize(
    "words", [("--stats",), ("--color",)], ids=lambda words: words[0]
)
def test_quiet_keeps_the_text(here, unbarred, words):
    asked = (*"generate -t 0 --seed 1 --max-tokens 3".split(), *PLAIN, "Hello", *words)
    found, quiet = (here(*asked, *more, FORCE_COLOR="1") for more in ((), ("--quiet",)))
    assert quiet.returncode == 0
    texts = [unstyled(one.stdout).partition('"rounds"')[0] for one in (quiet, found)]
    assert texts[0] == texts[1]
    assert quiet.stderr == ""
    assert "tok/s" in unstyled(found.stderr)
    assert "tok/s" in unstyled(here(*asked).stderr), "the next command is not quiet"


def test_quiet_does_not_hide_errors(here):
    found = here("generate", "", "--quiet")
    assert found.returncode == 2
    assert found.stderr.startswith("error: cannot answer: the prompt is empty")


def test_only_a_terminal_shows_loading(here, unbarred):
    asked = ("generate", "Hello", "--max-tokens", "3", "--no-stats", *PLAIN)
    assert "loading the model" in unstyled(here(*asked, FORCE_COLOR="1").stderr)
    assert here(*asked).stderr == ""
    assert "loading the model" in unstyled(here("chat", *PLAIN, FORCE_COLOR="1").stderr)
    assert "loading" not in here("chat", *PLAIN).stderr


def test_a_terminal_shows_how_much_of_a_long_prompt_is_read(here, tmp_path):
    folder = str(tiny_long.saved(tmp_path / "long"))
    asked = ("--model", folder, "--max-tokens", "2", "--no-stats", *PLAIN)
    long = "river " * 3000
    shown = here("generate", long, *asked, FORCE_COLOR="1").stderr
    assert "reading the prompt" in unstyled(shown)
    for prompt, colour in (("river", {"FORCE_COLOR": "1"}), (long, {})):
        found = here("generate", prompt, *asked, **colour)
        assert "reading the prompt" not in unstyled(found.stderr)


def test_an_encoder_decoder_writes_after_its_source(here, tmp_path):
    folder = tiny_seq2seq.saved("pegasus", tmp_path / "pegasus")
    words = f"--model {folder} --dtype float32 --max-tokens 20 --seed 1".split()
    found = here("generate", "A text.", *words, "--json", "--no-stats")
    answer, params = json.loads(found.stdout), SamplingParams(max_tokens=20, seed=1)
    llm = foreword.LLM(folder, dtype="float32")
    (expected,) = llm.generate("A text.", params)
    assert (answer["text"], answer["tokens"]) == (expected.text, expected.tokens)
    for option, said in (
        ("--chat", "has no chat template"),
        ("--language fr", "cannot answer in language='fr'"),
    ):
        refused = here("generate", "A text.", *words, *option.split())
        assert refused.returncode == 2
        assert said in refused.stderr
