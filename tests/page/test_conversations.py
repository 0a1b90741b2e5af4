"""A chat that people stay in: kept, tried again, edited, followed; errors in their place."""

import pytest
from playwright.sync_api import Page, expect

from browsing import ask
from owned import TALE

LIST = "Write a long list of animals."


def messages(page: Page, act: object) -> list[tuple[str, str]]:
    """The messages of the request that `act` sends."""
    with page.expect_request("**/v1/chat/completions") as sent:
        act()  # type: ignore[operator]
    body = sent.value.post_data_json
    return [(one["role"], one["content"]) for one in body["messages"]]


def test_conversations_are_kept_opened_and_deleted(page):
    ask(page, TALE, seed="7", tokens="24")
    text = page.locator(".answer").text_content()
    rounds = page.locator(".round").count()
    page.locator("#fresh").click()
    expect(page.locator(".turn")).to_have_count(0)
    ask(page, LIST, seed="7", tokens="16")
    page.locator("#chats summary").click()
    expect(page.locator("#kept .title")).to_have_text([LIST, TALE[:60].strip()])
    page.locator("#kept .title").nth(1).click()
    expect(page.locator(".answer")).to_have_text(text or "")
    expect(page.locator(".round")).to_have_count(rounds)
    page.locator(".round").nth(1).click()
    expect(page.locator("#stage h2")).to_have_text(f"Pass 2 of {rounds}")
    # and it goes on from there
    sent = messages(page, lambda: ask(page, "Again.", tokens="4"))
    assert sent == [("user", TALE), ("assistant", text), ("user", "Again.")]
    page.locator("#chats summary").click()
    page.get_by_role("button", name=f"Delete {LIST}").click()
    expect(page.locator("#kept .title")).to_have_count(1)
    page.locator("#forget").click()
    expect(page.locator("#chats")).to_be_hidden()
    page.reload()
    expect(page.locator("#served")).to_contain_text("foreword-family")
    expect(page.locator("#chats")).to_be_hidden()


def test_an_answer_is_asked_for_again_with_either_seed(page):
    ask(page, TALE, temperature="1", seed="", tokens="24")
    text = page.locator(".answer").text_content()
    seed = (page.locator(".card .sum").text_content() or "").split("seed ")[1]
    again = page.get_by_role("button", name="Again", exact=True)
    sent = messages(page, again.click)
    assert sent == [("user", TALE)]
    expect(page.locator("#status")).to_contain_text("Answer complete")
    expect(page.locator(".turn")).to_have_count(1)
    expect(page.locator(".card .sum")).to_contain_text(f"seed {seed}")
    assert page.locator(".answer").text_content() == text
    page.get_by_role("button", name="New seed").click()
    expect(page.locator(".card .sum")).not_to_contain_text(f"seed {seed}")
    expect(page.locator(".turn")).to_have_count(1)


def test_a_question_is_edited_and_replaces_what_came_after(page):
    ask(page, TALE, seed="7", tokens="8")
    ask(page, "Go on.", tokens="8")
    page.get_by_role("button", name="Edit").first.click()
    prompt = page.locator("#composer textarea")
    expect(prompt).to_have_value(TALE)
    expect(page.locator("#editing-note")).to_contain_text("1 turn after it")
    page.keyboard.press("Escape")
    expect(prompt).to_have_value("")
    prompt.press("ArrowUp")
    expect(prompt).to_have_value("Go on.")
    page.get_by_role("button", name="Edit").first.click()
    assert messages(page, lambda: ask(page, LIST)) == [("user", LIST)]
    expect(page.locator(".turn")).to_have_count(1)


def test_settings_and_the_system_prompt_are_sent_and_kept(page):
    page.get_by_text("More settings").click()
    for name, value in (("system", "Be brief."), ("top_p", "0.9"), ("stop", "river")):
        page.locator(f"#settings [name={name}]").fill(value)
    page.locator("#settings [name=repetition_penalty]").fill("1.1")
    page.reload()
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, TALE, temperature="0.7", tokens="8")
    body = sent.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["top_p"], body["repetition_penalty"]) == (0.9, 1.1)
    assert body["stop"] == ["river"]
    assert "top_k" not in body
    page.get_by_text("More settings").click()
    page.locator("#defaults").click()
    assert page.locator("#settings [name=system]").input_value() == ""
    assert page.locator("#settings [name=tokens]").input_value() == ""


def test_an_error_stands_where_the_answer_would_be(page):
    page.locator("#composer textarea").fill("word " * 2000)
    page.keyboard.press("Enter")
    failure = page.locator(".turn .failure")
    expect(failure).to_contain_text("cannot")
    expect(page.locator("#error")).to_be_hidden()
    failure.get_by_role("button", name="Edit").click()
    # what the server refused is not sent again with the next question
    page.keyboard.press("Escape")
    assert messages(page, lambda: ask(page, TALE, tokens="4")) == [("user", TALE)]


def test_a_failed_turn_stays_and_can_be_tried_again(page):
    def lost(route: object) -> None:
        route.abort()  # type: ignore[attr-defined]

    page.route("**/v1/chat/completions", lost)
    page.locator("#composer textarea").fill(TALE)
    page.keyboard.press("Enter")
    failure = page.locator(".turn .failure")
    expect(failure).to_contain_text("cannot reach the server")
    page.unroute("**/v1/chat/completions")
    # the question is part of the next request
    sent = messages(page, lambda: ask(page, "Briefly.", seed="7", tokens="4"))
    assert sent == [("user", f"{TALE}\n\nBriefly.")]
    expect(page.locator(".turn")).to_have_count(2)
    failure.get_by_role("button", name="Try again").click()
    expect(page.locator(".turn")).to_have_count(1)
    expect(page.locator("#status")).to_contain_text("Answer complete")
    expect(failure).to_be_hidden()


def test_a_reload_leaves_the_conversation_in_view(page):
    ask(page, f"Summarise:\n{TALE * 40}", tokens="8")
    text = page.locator(".answer").text_content() or ""
    page.get_by_role("button", name="Show all").click()
    expect(page.locator(".asked")).to_be_visible()
    prompt = page.locator("#usage").inner_text()
    assert "of 1,024 tokens" in prompt
    assert not prompt.startswith("0 ")
    page.reload()
    expect(page.locator(".answer")).to_have_text(text)
    expect(page.locator(".asked.folded")).to_be_visible()
    expect(page.locator("#usage")).to_have_text(prompt)


def test_conversations_are_searched_renamed_and_exported(page, tmp_path):
    ask(page, TALE, tokens="4")
    page.locator("#fresh").click()
    ask(page, LIST, tokens="4")
    text = page.locator(".answer").text_content()
    page.locator("#chats summary").click()
    page.locator("#search").fill("MILLER")
    expect(page.locator("#kept .title")).to_have_count(1)
    page.locator("#search").fill("")
    page.get_by_role("button", name=f"Rename {LIST}").click()
    page.locator("#kept input").fill("Beasts")
    page.keyboard.press("Enter")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Export Beasts").click()
    file = tmp_path / saved.value.suggested_filename
    saved.value.save_as(file)
    written = f"# Beasts\n\n**You**\n\n{LIST}\n\n**Model**\n\n{text}\n"
    assert (file.name, file.read_text("utf-8")) == ("Beasts.md", written)


FOOT = "document.documentElement.scrollHeight - innerHeight - scrollY"


def test_the_page_follows_the_answer_unless_the_reader_scrolled(page):
    ask(page, LIST, tokens="400")
    expect(page.locator("#composer")).to_be_in_viewport()
    assert page.evaluate("scrollY") > 0
    assert page.evaluate(FOOT) < 60
    page.locator("#composer textarea").fill(LIST)
    page.keyboard.press("Enter")
    expect(page.locator(".turn").nth(1).locator(".round").nth(5)).to_be_attached()
    page.mouse.move(400, 300)
    page.mouse.wheel(0, -5000)
    expect(page.locator("#status")).to_contain_text("Answer complete")
    expect(page.locator(".turn").first).to_be_in_viewport()
    assert page.evaluate(FOOT) > 60
    # the box stays at the foot
    expect(page.locator("#composer")).to_be_in_viewport()


@pytest.mark.parametrize("way", ["typed", "drafter"])
def test_the_reader_drafts_and_sees_why(page, way):
    typed = "rose in the morning and"
    page.locator("[name=words]").fill(typed)
    if way == "typed":
        page.get_by_role("button", name="Check them").click()
    else:
        page.get_by_role("button", name="Let the drafter draft").click()
    expect(page.locator("#scene-said")).to_contain_text("from one pass")
    if way == "typed":
        kept = page.locator("#scene-why tr.accepted td:first-child")
        expect(kept).to_have_text(["rose", "in", "the"])
        expect(page.locator("#scene-why tr.refused td")).to_have_text(
            ["morning", "3%", "refused"]
        )
        expect(page.locator("#scene-text")).to_have_text("The river rose in the night")
        page.locator("[name=words]").fill("and the")
        page.keyboard.press("Enter")
        expect(page.locator("#scene-text")).to_contain_text("night and the")
    assert page.locator("#scene-text .token.accepted").count() > 0
    page.get_by_role("button", name="Start over").click()
    expect(page.locator("#scene-text")).to_have_text("The river")
