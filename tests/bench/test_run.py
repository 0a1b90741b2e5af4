"""One tiny run of every default entry on a small model that drafts for itself."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import starter
from foreword.errors import InvalidRequest, ModelError, UnknownMethod
from foreword.prompts import load
from foreword_lab.bench.lineup import ENTRIES, SPECULATIVE
from foreword_lab.bench.peers import hf
from foreword_lab.bench.report import Report
from foreword_lab.bench.row_names import row_names
from foreword_lab.bench.run import Options, run, spread

TOKENS = 8
ENLARGED = Options(offload_folder="x", inflate="llama-110m")
DEFAULT_ROWS = set(
    "plain ngram lm oracle transformers.generate transformers.assisted".split()
)
FIELDS = set(
    (
        "name temperature tokens_per_second tokens_per_pass acceptance "
        "drafted_per_accepted outside_forward_share speedup_over_plain "
        "speedup_over_generate decode_speedup_over_plain same_text"
    ).split()
)


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("bench") / "speed.png"


@pytest.fixture(scope="module")
def report(picture, progress) -> Report:
    options = Options(
        target=str(starter.draft()),
        draft=str(starter.draft()),
        limit_prompts=2,
        max_tokens=TOKENS,
        dtype="float32",
        budget="heuristic",  # the adaptive one may draft nothing on a busy machine
        plot=str(picture),
    )
    return run(options, progress.append)


@pytest.fixture(scope="module")
def written(report) -> dict:
    return json.loads(json.dumps(report.as_json(), allow_nan=False))


def rows(written: dict, name: str) -> list[dict]:
    return [row for row in written["rows"] if row["name"] == name]


def test_json_has_every_field_and_row(written):
    assert {"machine", "versions", "target", "seed", "rows"} <= set(written)
    assert all(set(row) >= FIELDS for row in written["rows"])
    for temperature in (0, 1):
        assert {
            row["name"] for row in written["rows"] if row["temperature"] == temperature
        } >= DEFAULT_ROWS
    assert {"cpu", "cores", "threads", "memory_gib", "bfloat16"} == set(
        written["machine"]
    )
    assert {"foreword", "torch", "transformers", "python"} == set(written["versions"])
    assert len(written["settings"]["prompt_ids"]) == 2
    assert set(hf.ASSISTANT) < set(written["settings"]["peers"])


def test_texts_equal_those_of_plain_decoding(written):
    """Those of transformers too, in float32 and at temperature 0."""
    for row in written["rows"]:
        if row["name"] in hf.NAMES and row["temperature"] == 1:
            assert row["same_text"] is None
        else:
            assert row["same_text"] is True, row["name"]


def test_speed_counts_emitted_tokens(written):
    for row in written["rows"]:
        assert 0 < row["tokens"] <= 2 * TOKENS
        assert row["prompts"] == 2
        assert row["tokens_per_second"] > 0
    plain = rows(written, "plain")[0]
    assert all(
        row["tokens"] == plain["tokens"]
        for row in written["rows"]
        if row["temperature"] == 0
    )


def test_one_prompt_gives_no_interval(report):
    single = replace(
        report,
        settings={**report.settings, "prompt_ids": report.settings["prompt_ids"][:1]},
    )
    first = next(row for row in single.as_json()["rows"] if row["name"] == "lm")
    low, mid, high = first["speedup_over_plain"]
    assert (low, high) == (None, None)
    assert mid > 0
    shown = single.table()
    cells = [column.cell(row) for column in shown.columns for row in shown.rows]
    assert not any("–" in cell for cell in cells)
    assert "one prompt, so no intervals" in shown.caption


def test_ratios_are_intervals_around_baselines_of_one(written):
    for row in written["rows"]:
        for ratio in (row["speedup_over_plain"], row["speedup_over_generate"]):
            low, mid, high = ratio
            assert 0 < low <= mid <= high
        low, mid, high = row["decode_speedup_over_plain"]
        assert 0 < low <= mid <= high
        assert row["first_token_seconds"] > 0
        assert row["decode_tokens_per_second"] > 0
        assert row["load_seconds"] > 0
    for name, ratio in (
        ("plain", "decode_speedup_over_plain"),
        ("plain", "speedup_over_plain"),
        (hf.GENERATE, "speedup_over_generate"),
    ):
        assert all(row[ratio] == [1, 1, 1] for row in rows(written, name))


def test_drafts_raise_the_tokens_per_pass(written):
    for name in ("plain", hf.GENERATE):
        assert [row["tokens_per_pass"] for row in rows(written, name)] == [1, 1]
        assert [row["acceptance"] for row in rows(written, name)] == [None, None]
    for name in ("oracle", hf.ASSISTED):
        assert min(row["tokens_per_pass"] for row in rows(written, name)) > 1
    assert all(0 < row["acceptance"] <= 1 for row in rows(written, "oracle"))


def test_only_our_rounds_show_their_forwards(written):
    for row in written["rows"]:
        if row["name"] in hf.NAMES:
            assert (
                row["outside_forward_share"]
                is row["prediction"]
                is row["share_of_allowed"]
                is None
            )
            continue
        assert 0 < row["outside_forward_share"] < 1
        assert row["share_of_allowed"] == pytest.approx(
            row["decode_tokens_per_second"] / row["prediction"]
        )
        assert set(row["step_seconds"]) == {"propose", "score", "verify", "commit"}
    # the draft model's forwards are forwards too, but not the target's
    for row in rows(written, "lm"):
        assert row["share_of_allowed"] + row["outside_forward_share"] < 1
    for row in rows(written, "oracle"):
        assert row["share_of_allowed"] + row["outside_forward_share"] == pytest.approx(
            1
        )


def test_the_table_shows_every_row(report, printed):
    shown = printed(report.table())
    counted = Counter(
        name
        for line in shown.splitlines()
        for name in ENTRIES
        if line.split()[:1] == [name]
    )
    assert counted == dict.fromkeys(row_names(None, quick=False), 2)
    assert "accepted¹" in shown
    assert "¹ accepted / verified draft tokens" in shown


def test_the_picture_is_drawn(report, picture):
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_progress_names_turns_and_no_exclusion(report, progress):
    assert sum(" of 2: " in line for line in progress) == 2
    assert not [line for line in progress if "left out" in line]


def test_selected_rows_keep_the_baselines():
    assert row_names(("oracle",), quick=False) == ("plain", "oracle", hf.GENERATE)
    assert row_names(("none",), quick=False) == ("plain", hf.GENERATE)
    assert set(row_names(None, quick=True)) >= DEFAULT_ROWS
    assert set(row_names(("all",), quick=False)) == {"plain", *SPECULATIVE, hf.GENERATE}
    assert row_names(("cascade(ngram, lm)",), quick=False) == (
        "plain",
        "cascade(ngram, lm)",
        hf.GENERATE,
    )


def test_prompts_are_spread_over_the_sources():
    prompts = load("in-domain")
    assert len({prompt.source for prompt in spread(prompts, 6)}) == 6
    assert spread(prompts, None) == spread(prompts, 1000) == prompts


def test_quick_never_exceeds_given_limits():
    quick = Options(quick=True, repeats=5)
    assert (quick.tokens, quick.limit, quick.times) == (48, 6, 1)
    assert Options(quick=True, max_tokens=8, limit_prompts=9).tokens == 8
    assert Options(limit_prompts=9).limit == 9


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (Options(methods=("oracel",)), UnknownMethod, "no such method exists"),
        (Options(methods=("ngram()",)), InvalidRequest, "ngram joins no other methods"),
        (Options(inflate="llama-2b"), InvalidRequest, "cannot inflate to 'llama-2b'"),
        (Options(dtype="int4"), ModelError, "cannot use dtype"),
        (Options(max_tokens=0), InvalidRequest, "'max_tokens' must be at least 1"),
        (Options(repeats=0), InvalidRequest, "'repeats' must be at least 1"),
        (Options(temperatures=()), InvalidRequest, "'temperatures' must be"),
        (Options(temperatures=(-1.0,)), InvalidRequest, "'temperatures' must be"),
        (Options(plot="no/such/folder/x.png"), InvalidRequest, "cannot write"),
        (Options(target="no/such/model"), ModelError, "no/such/model"),
        (Options(max_tokens=100_000), InvalidRequest, "Lower max_tokens"),
        (ENLARGED, InvalidRequest, r"cannot offload an enlarged.*recipes/inflate\.py"),
    ],
)
def test_bad_options_are_refused_before_any_work(options, error, message):
    with pytest.raises(error, match=message):
        run(options)
