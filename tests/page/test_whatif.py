"""What if: an answer of the page, re-scored for other methods by the server."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from browsing import ask
from serving import Running

TALE = "Summarise: The river rose in the night and the miller moved his grain upstairs."


def recording(served: Running, tokens: int = 24) -> dict:
    body = {
        "messages": [{"role": "user", "content": TALE}],
        "temperature": 0,
        "max_tokens": tokens,
        "speculative": {"trace": True},
    }
    choice = served.post("/v1/chat/completions", **body)["choices"][0]
    return choice["recording"] | {"rounds": choice["rounds"]}


def test_methods_are_compared_under_an_answer(page: Page) -> None:
    ask(page, TALE, seed="7", tokens="32", nodes="4", temperature="0")
    passes = page.locator(".round").count()
    page.get_by_text("What if").click()
    rows = page.locator(".compared tbody tr")
    expect(rows).not_to_have_count(0)
    cells = [row.locator("td").all_text_contents() for row in rows.all()]
    by_name = {(name, nodes): own for name, nodes, *own in cells}
    # the method of the answer takes as many passes as the answer did
    assert by_name["lm", "4"][0] == str(passes)
    assert by_name["none", "–"][-1] == "1×"
    assert {name for name, _ in by_name} == {"none", "lm", "suffix", "ngram", "eagle"}


def test_the_route_compares_and_refuses_in_words(served: Running) -> None:
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
