"""The race: both runs, one clock, and the proof; and the view of costs."""

import pytest
from playwright.sync_api import Page, expect

from browsing import ask

TALE = "Summarise: The river rose in the night and the miller moved his grain upstairs."


@pytest.mark.parametrize(
    "temperature", ["0", pytest.param("1", marks=pytest.mark.slow)]
)
def test_a_race_ends_with_no_token_that_differs(page: Page, temperature: str) -> None:
    page.get_by_role("tab", name="Race").click()
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
    expect(page.locator(".proof span")).to_contain_text("Both had the seed")
    assert (
        plain.locator(".answer").text_content()
        == drafted.locator(".answer").text_content()
    )
    drafted.locator(".round").first.click()
    expect(page.locator("#stage h2")).to_contain_text("Pass 1 of")
    expect(page.locator(".lane .clock").first).to_contain_text("s")


def test_a_race_can_be_stopped_and_shows_its_own_figures(page: Page) -> None:
    ask(page, TALE, tokens="16", temperature="0")
    page.get_by_role("tab", name="Race").click()
    expect(page.locator("#stage .strip")).to_be_hidden()
    page.locator("#settings [name=tokens]").fill("900")
    page.locator("#race-form textarea").fill("Write a long list of animals.")
    page.locator("#race-start").click()
    # the lane is written while it runs
    expect(page.locator(".lane .round").nth(3)).to_be_attached()
    expect(page.locator("#stage .strip")).to_be_visible()
    page.locator("#race-start").click()
    expect(page.locator("#race-state")).to_have_text("Stopped")
    expect(page.locator("#race-start")).to_have_text("Race")
    page.get_by_role("tab", name="Chat").click()
    expect(page.locator("#stage .strip")).to_be_visible()


def test_what_was_measured_stands_on_the_curve(page: Page) -> None:
    ask(page, TALE, tokens="48", temperature="0", nodes="4")
    page.get_by_role("tab", name="Race").click()
    page.locator("#race-form textarea").fill(TALE)
    page.locator("#race-start").click()
    expect(page.locator(".proof strong")).to_contain_text("tokens differ")
    page.get_by_role("tab", name="What pays").click()
    expect(page.locator("#alpha-source")).to_contain_text("Of the last answer")
    names = page.locator("#plot text.measured")
    expect(names).to_contain_text(["the last answer, measured", "the race, measured"])
    for axis in ("draft tokens in a pass", "speed over plain decoding"):
        expect(page.locator("#plot").get_by_text(axis)).to_have_count(1)


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


def test_a_token_that_differs_is_counted(page: Page) -> None:
    script = """async () => {
        const { compared } = await import("/page/race.js");
        const one = (token) => ({ draft: [], accepted: [], added: { token, kind: "plain" }, pieces: ["x"] });
        const of = (...tokens) => ({ rounds: tokens.map(one) });
        return [compared(of(1, 2, 3), of(1, 5, 3)), compared(of(1, 2), of(1, 2, 3)), compared(of(1), of(1))];
    }"""
    counted = page.evaluate(script)
    assert counted == [
        {"differing": 1, "length": 3},
        {"differing": 1, "length": 3},
        {"differing": 0, "length": 1},
    ]


@pytest.mark.slow
def test_the_point_where_drafting_loses_is_marked(page: Page) -> None:
    page.get_by_role("tab", name="What pays").click()
    expect(page.locator("#verdict")).to_contain_text("times plain decoding")
    expect(page.locator("#costs-source")).to_contain_text("Measured on")
    page.locator("#alpha").fill("0.05")
    page.locator("#batch").fill("32")
    expect(page.locator("#plot text.edge, #plot path")).not_to_have_count(0)
    expect(page.locator("#verdict")).to_contain_text("No draft pays")
    page.locator("#alpha").fill("1")
    page.locator("#batch").fill("1")
    expect(page.locator("#verdict")).to_contain_text("Best are")


def test_costs_follow_the_measured_table(page: Page) -> None:
    script = """async () => {
        const { expected, forward, speedUp } = await import("/page/costs.js");
        const costs = { forward_ms: { 1: 10, 4: 13, 8: 17 }, overhead_ms: 0, drafting: { start_ms: 1, token_ms: 2 } };
        return [forward(costs.forward_ms, 1), forward(costs.forward_ms, 6), forward(costs.forward_ms, 12),
            expected(0.5, 2), expected(1, 3), speedUp(costs, 1, 3, 1), speedUp(costs, 0.9, 0, 1)];
    }"""
    assert page.evaluate(script) == pytest.approx(
        [10, 15, 21, 1.75, 4, 4 * 10 / (13 + 1 + 6), 1]
    )
