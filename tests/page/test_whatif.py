"""What if: an answer of the page, re-scored for other methods by the server."""

import pytest
from playwright.sync_api import expect

from browsing import ask, more, tab
from owned import TALE
from serving import Running


def recording(served: Running, tokens: int = 24) -> dict:
    body = {
        "messages": [{"role": "user", "content": TALE}],
        "temperature": 0,
        "max_tokens": tokens,
        "speculative": {"trace": True},
    }
    choice = served.post("/v1/chat/completions", **body)["choices"][0]
    return choice["recording"] | {"rounds": choice["rounds"]}


def test_methods_are_compared_and_their_passes_open_by_keys(page):
    ask(page, TALE, tokens="32", nodes="4", temperature="0")
    passes = page.locator(".round").count()
    more(page)
    page.get_by_text("What if").click()
    rows = page.locator(".compared tbody tr")
    expect(rows).not_to_have_count(0)
    cells = [row.locator("td").all_text_contents() for row in rows.all()]
    by_name = {(name, nodes): own for name, nodes, *own in cells}
    # the method of the answer takes as many passes as the answer did
    assert by_name["lm", "4"][0] == str(passes)
    assert by_name["none", "–"][-1] == "1×"
    assert {name for name, _ in by_name} == {"none", "lm", "suffix", "ngram", "eagle"}
    button = page.get_by_role("button", name="lm, 4 draft tokens: show its passes")
    expect(button).to_have_attribute("aria-expanded", "false")
    button.focus()
    page.keyboard.press("Enter")
    opened = page.get_by_role("region", name="Passes of a method")
    expect(opened.locator("h3")).to_have_text(f"lm, 4 draft tokens: {passes} passes")
    expect(button).to_have_attribute("aria-expanded", "true")
    first = opened.locator("ol > li").first
    expect(first).to_contain_text("tokens drafted")
    if passes > 8:
        opened.get_by_role("button", name=f"Show {passes - 8} more").click()
    expect(opened.locator("ol > li")).to_have_count(passes)
    # the trees are those of the answer: as many nodes were accepted as it has green tokens
    accepted = opened.locator(".node.accepted").count()
    assert accepted > 0
    assert opened.locator(".node.own").count() == passes
    green = page.locator(".answer .token.accepted").count()
    # the end of the answer cuts a path that was accepted
    assert green <= accepted <= green + 4
    assert opened.locator(".node.refused").count() > 0
    # another method takes the place of the first, and the button closes it
    other = page.get_by_role("button", name="suffix, 8 draft tokens: show its passes")
    other.click()
    expect(opened.locator("h3")).to_contain_text("suffix, 8 draft tokens")
    expect(button).to_have_attribute("aria-expanded", "false")
    other.press("Space")
    expect(opened).to_be_hidden()
    expect(other).to_have_attribute("aria-expanded", "false")


@pytest.mark.slow
def test_passes_are_read_on_a_phone_without_scrolling_the_page(browser, served):
    with tab(browser, width=390) as opened:
        page = opened.page
        page.goto(served.url)
        ask(page, TALE, seed="7", tokens="32", temperature="0")
        more(page)
        page.get_by_text("What if").click()
        page.get_by_role("button", name="lm, 8 draft tokens: show its passes").click()
        expect(page.locator(".passes h3")).to_contain_text("lm, 8 draft tokens")
        wide = "document.documentElement.scrollWidth - innerWidth"
        assert page.evaluate(wide) <= 0
        tree = page.locator(".passes .tree").first.bounding_box()
        assert tree is not None
        assert tree["x"] + tree["width"] <= 390
        page.get_by_text("Tokens", exact=True).click()
        total = page.locator(".round").count()
        page.locator(".round").nth(total - 2).click()
        expect(page.locator("#stage h2")).to_have_text(f"Pass {total - 1} of {total}")


def test_the_route_compares_and_refuses_in_words(served):
    own = recording(served)
    found = served.post(
        "/speculation/whatif", recording=own, methods=["lm"], nodes=[2], trees=True
    )
    lm, plain = sorted(found["outcomes"], key=lambda one: one["passes"])
    assert (plain["method"], plain["passes"]) == ("none", plain["tokens"])
    assert len(lm["rounds"]) == lm["passes"] < plain["passes"]
    chains = served.post(
        "/speculation/whatif", recording=own, methods=["lm"], nodes=[2], rules=["block"]
    )
    assert {one["rule"] for one in chains["outcomes"]} == {"match", "block"}
    for body, said in (
        ({"recording": own | {"version": 9}}, "it has version 9"),
        ({"recording": own, "nodes": [0]}, "nodes"),
        ({"recording": own, "rules": ["blok"]}, "Did you mean 'block'"),
        ({}, "recording"),
    ):
        answer = served.http.post("/speculation/whatif", json=body)
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"]
    odd = served.post("/speculation/whatif", recording=own, methods=["eagl"])
    assert "Did you mean 'eagle'" in odd["left_out"][0]["why"]
