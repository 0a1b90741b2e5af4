"""Replays: slider, playing, saving, opening; with a server and in one file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from browsing import Tab, ask, more, recorded, tab, upload
from command import Here
from foreword import Recording
from foreword_server.page.files import Shown, static_file, write_self_contained
from owned import TALE


@pytest.fixture(scope="module")
def recording() -> str:
    return recorded(temperature=0, max_tokens=32)


@pytest.fixture
def alone(
    browser: Browser, recording: str, tmp_path: Path, here: Here
) -> Iterator[Tab]:
    """The file that `foreword view --html` writes, opened from the disk."""
    source, file = tmp_path / "answer.json", tmp_path / "answer.html"
    source.write_text(recording, encoding="utf-8")
    assert here("view", str(source), "--html", str(file)).stderr.startswith(
        "saved the replay"
    )
    with tab(browser) as opened:
        opened.page.goto(file.as_uri())
        yield opened
        assert [
            url
            for url in opened.loaded
            if not url.startswith(("file:", "blob:", "data:"))
        ] == []


@pytest.mark.slow
def test_the_slider_moves_through_the_rounds(page):
    ask(page, "Write a long list of animals.", method="none", tokens="104")
    off = "Written plainly, one token a pass: drafting was off."
    expect(page.locator(".strip .note")).to_have_text(off)
    expect(page.locator(".plainly")).to_contain_text(f"{off}Draft 4Copy from the text")
    more(page)
    rounds, slider = page.locator(".round").count(), page.locator(".replay input")
    assert (slider.get_attribute("max"), slider.input_value()) == (str(rounds),) * 2
    slider.fill("1")
    expect(page.locator("#stage h2")).to_have_text(f"Pass 1 of {rounds}")
    assert page.locator(".round.later").count() == rounds - 1
    assert "Pass 1: " in (slider.get_attribute("aria-valuetext") or "")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#stage h2")).to_have_text(f"Pass 2 of {rounds}")
    page.get_by_role("button", name="Play").click()
    expect(page.locator(".round.later")).to_have_count(0)
    assert page.locator(".heat i").count() == rounds


def test_a_saved_answer_is_a_recording_that_opens_again(page, tmp_path):
    ask(page, TALE, seed="7", tokens="32")
    text = page.locator(".answer").text_content()
    more(page)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save").click()
    file = tmp_path / "answer.json"
    saved.value.save_as(file)
    recording = Recording.read(file)
    assert (recording.method, recording.answer) == ("lm", text)
    assert recording.totals.accepted > 0
    page.locator("#fresh").click()
    upload(page, "answer.json", file.read_text(encoding="utf-8"))
    expect(page.locator(".answer")).to_have_text(text or "")
    expect(page.locator(".card .sum")).to_contain_text("method lm")


def test_one_file_shows_an_answer_without_a_server(alone, recording):
    page, value = alone.page, json.loads(recording)
    assert page.locator(".answer").text_content() == value["answer"]
    assert page.locator(".answer .token.accepted").count() > 0
    page.locator(".round").nth(1).click()
    expect(page.locator("#stage h2")).to_have_text(f"Pass 2 of {len(value['rounds'])}")
    upload(page, "again.json", recording)
    expect(page.locator(".answer")).to_have_count(2)


@pytest.mark.slow
def test_a_pair_races_in_the_file(browser, recording, tmp_path):
    file = tmp_path / "pair.html"
    plain = recorded(temperature=0, max_tokens=32, method="none")
    write_self_contained(file, [Shown("A pair", recording, plain)])
    with tab(browser) as opened:
        opened.page.goto(file.as_uri())
        opened.page.get_by_role("button", name="Race against plain decoding").click()
        expect(opened.page.locator(".proof strong")).to_have_text(
            f"0 of {len(json.loads(plain)['rounds'])} tokens differ"
        )


def round_with(value: dict[str, Any], **more: object) -> dict[str, Any]:
    """The recording with another first round and no other."""
    return {**value, "rounds": [{**value["rounds"][0], **more}]}


def test_file_that_is_no_recording_is_refused_in_words(page, recording):
    value = json.loads(recording)
    for content, words in (
        ("no JSON", "it is not JSON"),
        (json.dumps([]), "it is not a recording"),
        (json.dumps({**value, "version": 2}), "it has version 2"),
        (json.dumps({**value, "answer": 5}), "its answer is not text"),
        (json.dumps(round_with(value, accepted=[99])), "round 1 is damaged"),
        (json.dumps(round_with(value, score_ms=None)), "round 1 is damaged"),
    ):
        upload(page, "odd.json", content)
        expect(page.locator("#error")).to_contain_text(f"cannot open odd.json: {words}")
        assert page.locator(".card").count() == 0
        page.reload()
        expect(page.locator("#served")).to_contain_text("foreword-family")


def test_only_the_files_of_the_page_are_served():
    assert static_file("main.js") is not None
    outside = "../files.py vendor/../../files.py vendor/VERSIONS.md static/main.js"
    for name in ("", "main.py", "/etc/passwd", *outside.split()):
        assert static_file(name) is None, name
