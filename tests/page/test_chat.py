"""The chat: tokens, rounds, settings, errors, turns; what only a browser sees."""

import json
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import expect

import starter
from browsing import ask, choose, tab, watched_answer
from foreword import LLM
from owned import TALE
from serving import Running, running

LONG = "Write a long list of animals."


def reference(served: Running, **more: object) -> str:
    """The answer of plain decoding to TALE, from the same server."""
    body = {
        "messages": [{"role": "user", "content": TALE}],
        "seed": 7,
        "temperature": 0,
        "speculative": {"method": "none"},
    }
    answer = served.post("/v1/chat/completions", **{**body, **more})
    return answer["choices"][0]["message"]["content"]


def test_every_token_has_the_colour_of_its_origin(page, served):
    ask(page, TALE, seed="7", tokens="48")
    answer = page.locator(".answer")
    assert answer.text_content() == reference(served, max_tokens=48)
    assert answer.locator(".token.accepted").count() > 0
    own = answer.locator(".token.correction, .token.bonus, .token.plain").count()
    # the last may be cut
    count = answer.locator(".round").count()
    assert own in (count, count - 1)
    expect(page.locator(".strip")).to_contain_text("tokens a pass")


def test_a_round_opens_and_shows_its_tree(page):
    ask(page, TALE, seed="7", tokens="48")
    rounds = page.locator(".round")
    total = rounds.count()
    rounds.nth(1).hover()
    expect(page.locator("#stage h2")).to_have_text(f"Pass 2 of {total}")
    for at in range(total):
        rounds.nth(at).click()
        expect(page.locator("#stage h2")).to_have_text(f"Pass {at + 1} of {total}")
        kept = page.locator("#stage .node.accepted").count()
        words = "none" if kept == 0 else str(kept)
        drafted = kept + page.locator("#stage .node.refused").count()
        if drafted:
            expect(page.locator(".sentence")).to_contain_text(f"{words} accepted")
            expect(page.locator(".sentence")).to_contain_text(f"{drafted} token")
        # struck through
        assert page.locator("#stage .node.refused s").count() == drafted - kept
        assert page.locator("#stage .node.own").count() == 1
        # also where the tree is wider than the panel
        expect(page.locator("#stage .node.own")).to_be_in_viewport()
    for step in ("propose", "score", "verify", "commit"):
        expect(page.locator(f"#stage dt.{step} + dd")).to_contain_text(" ms")
    expect(page.locator("#stage small").first).to_contain_text("%")


@pytest.mark.parametrize("way", ["button", "Escape"])
def test_stop_ends_the_answer_here_and_on_the_server(page, served, way):
    page.locator("#settings [name=tokens]").fill("900")
    page.locator("#composer textarea").fill(LONG)
    page.keyboard.press("Enter")
    expect(page.locator(".round").first).to_be_visible()
    engine = served.service.llm.engine
    with served.service.llm.session._lock:  # no round runs, so it cannot end by itself
        assert engine.load.running == 1
        if way == "button":
            page.locator("#send").click()
        else:
            page.keyboard.press(way)
        expect(page.locator("#status")).to_have_text("The answer has ended early")
        expect(page.locator("#send")).to_have_text("Send")
        size = page.locator(".answer .token").count()
        expect(page.locator(".ending")).to_contain_text(f"by you after {size} token")
        expect(page.get_by_role("button", name="Continue")).to_be_visible()
    while not engine.idle:
        served.http.get("/health")
    page.reload()
    expect(page.locator(".ending")).to_contain_text("Stopped by you")
    text = page.locator(".answer").text_content()
    assert text
    # what was written is part of the next request
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "Go on.", tokens="4")
    roles = [
        (one["role"], one["content"]) for one in sent.value.post_data_json["messages"]
    ]
    assert roles == [("user", LONG), ("assistant", text), ("user", "Go on.")]


def test_keys_alone_ask_and_open_rounds(page):
    page.locator("#composer textarea").focus()
    page.keyboard.type(TALE)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("Answer complete")
    page.locator("#composer textarea").focus()
    while page.evaluate("document.activeElement.className") != "answer":
        page.keyboard.press("Shift+Tab")
    expect(page.locator("#stage h2")).to_contain_text("Pass 1 of")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#stage h2")).to_contain_text("Pass 2 of")
    active = page.locator(".answer").get_attribute("aria-activedescendant")
    assert page.locator(f"#{active}").get_attribute("aria-selected") == "true"
    page.keyboard.press("End")
    last = page.locator(".round").count()
    expect(page.locator("#stage h2")).to_have_text(f"Pass {last} of {last}")
    page.keyboard.press("Escape")
    expect(page.locator("#stage h2")).to_contain_text("Best pass: ")


def test_an_answer_goes_to_its_end_or_says_how_it_ended(page, served):
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, TALE, temperature="0")
    assert "max_tokens" not in sent.value.post_data_json
    expect(page.locator(".ending")).to_have_count(0)
    whole = page.locator(".answer").text_content()
    page.locator("#fresh").click()
    ask(page, TALE, tokens="5")
    expect(page.locator(".ending")).to_contain_text("Cut at 5 tokens.")
    expect(page.get_by_role("button", name="New seed")).to_have_count(0)
    expect(page.locator(".sum")).not_to_contain_text("seed")
    choose(page, tokens="")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".ending")).to_have_count(0)
    expect(page.locator("#status")).to_contain_text("Answer complete")
    assert page.locator(".answer").text_content() == whole
    assert page.locator(".answer .token.accepted").count() > 0


def test_the_page_changes_at_most_once_a_frame(page):
    """Tokens arrive faster than frames."""
    seen = watched_answer(page, "Write a long list of animals.", 200)
    assert seen["tokens"] > 100
    # the question, the first and the last text, the facts
    assert seen["updates"] <= len(seen["gaps"]) + 4
    assert page.locator(".round").count() > 30


def test_sampling_of_the_model_fills_the_form(browser):
    values = {"temperature": 0.65, "top_p": 0.9, "repetition_penalty": 1.05}
    with (
        LLM(nodes=4, generation_config=values) as llm,
        running(llm) as served,
        tab(browser) as opened,
    ):
        opened.page.goto(served.url)
        expect(opened.page.locator("#settings output")).to_have_text("0.65")
        ask(opened.page, TALE, seed="7", tokens="24")
        shown = opened.page.locator(".answer").text_content()
        assert shown == reference(served, max_tokens=24, **values)
        opened.page.reload()
        expect(opened.page.locator("#settings output")).to_have_text("0.65")
        opened.page.locator("#fresh").click()
        opened.page.locator("details.more summary").click()
        ask(opened.page, TALE, seed="7", tokens="24", top_p="1", temperature="0.9")
        more = {**values, "temperature": 0.9, "top_p": 1}
        shown = opened.page.locator(".answer").last.text_content()
        assert shown == reference(served, max_tokens=24, **more)


def test_a_model_without_a_template_goes_on_with_a_text(browser, tmp_path):
    folder = Path(shutil.copytree(starter.target(), tmp_path / "base"))
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    with (
        LLM(folder, method="ngram", nodes=4) as llm,
        running(llm) as served,
        tab(browser) as opened,
    ):
        opened.page.goto(served.url)
        beginning = "one two three four one two three four one two"
        opened.page.get_by_text("Once upon a time").wait_for()
        ask(opened.page, beginning, tokens="12")
        found = served.post("/v1/completions", prompt=beginning, temperature=0)
        answer = opened.page.locator(".answer")
        assert found["choices"][0]["text"].startswith(answer.text_content())
        assert answer.locator(".token.accepted").count() > 0
