"""The race: both runs, one clock, and the proof; and the view of costs."""

import pytest
from playwright.sync_api import Page, expect

from browsing import ask
from grids import slow_case
from owned import TALE


@pytest.mark.parametrize("temperature", ["0", slow_case("1")])
def test_a_race_ends_with_no_token_that_differs(page: Page, temperature: str) -> None:
    page.get_by_role("tab", name="Side by side").click()
    page.locator("#settings [name=temperature]").fill(temperature)
    page.locator("#settings [name=tokens]").fill("40")
    page.locator("#race-form textarea").fill(TALE)
    page.locator("#race-form button").click()
    expect(page.locator(".proof strong")).to_contain_text("tokens differ")
    plain, drafted = page.locator(".lane").all()
    # otherwise plain is compared with plain; tokens are drawn with the next frame
    expect(drafted.locator(".token.accepted")).not_to_have_count(0)
    assert plain.locator(".token.accepted").count() == 0
    tokens = plain.locator(".token").count()
    expect(page.locator(".proof strong")).to_have_text(f"0 of {tokens} tokens differ")
    seeded = "Both had the seed" in page.locator(".proof span").inner_text()
    assert seeded == (temperature == "1")
    texts = [one.locator(".answer").text_content() for one in (plain, drafted)]
    assert texts[0] == texts[1]
    drafted.locator(".round").first.click()
    expect(page.locator("#stage h2")).to_contain_text("Pass 1 of")
    expect(page.locator(".lane .clock").first).to_contain_text("s")


def test_a_race_can_be_stopped_and_shows_its_own_figures(page: Page) -> None:
    ask(page, TALE, tokens="16", temperature="0")
    page.get_by_role("tab", name="Side by side").click()
    expect(page.locator("#stage .strip")).to_be_hidden()
    page.locator("#settings [name=tokens]").fill("900")
    page.locator("#race-form textarea").fill("Write a long list of animals.")
    page.locator("#race-start").click()
    # the lane is written while it runs
    expect(page.locator(".lane .round").nth(3)).to_be_attached()
    expect(page.locator("#stage .strip")).to_be_visible()
    page.locator("#race-start").click()
    expect(page.locator("#race-state")).to_have_text("Stopped")
    expect(page.locator("#race-start")).to_have_text("Compare")
    page.get_by_role("tab", name="Chat").click()
    expect(page.locator("#stage .strip")).to_be_visible()


def test_what_was_measured_stands_on_the_curve(page: Page) -> None:
    ask(page, TALE, tokens="48", temperature="0", nodes="4")
    page.get_by_role("tab", name="Side by side").click()
    page.locator("#race-form textarea").fill(TALE)
    page.locator("#race-start").click()
    expect(page.locator(".proof strong")).to_contain_text("tokens differ")
    page.get_by_role("tab", name="When it helps").click()
    expect(page.locator("#alpha-source")).to_contain_text("Of the last answer")
    expect(page.locator("#costs-source")).to_contain_text("In the last answer: ")
    for axis in ("drafted words in a pass", "speed beside plain"):
        expect(page.locator("#plot").get_by_text(axis)).to_have_count(1)
    page.locator("#alpha").fill("0")
    expect(page.locator("#verdict")).to_contain_text("plain is faster")
    page.locator("#alpha").fill("1")
    expect(page.locator("#verdict")).to_contain_text("Best: ")


def test_a_wide_tree_says_where_it_goes_on(page: Page) -> None:
    ask(page, TALE, seed="7", tokens="48", nodes="16")
    cut = page.locator("#stage .cut")
    for at in range(page.locator(".round").count()):
        page.locator(".round").nth(at).click()
        tree = page.locator("#stage .tree")
        hidden = tree.evaluate("node => node.scrollLeft >= 1")
        expect(cut).to_be_visible() if hidden else expect(cut).to_be_hidden()
        if hidden:
            cut.click()
            expect(cut).to_be_hidden()
            return
    pytest.fail("no tree was wider than its panel")
