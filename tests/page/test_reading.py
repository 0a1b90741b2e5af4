"""Answers to read: Markdown, code and maths, made harmless; reasoning and calls of tools."""

import json

from playwright.sync_api import Browser, Page, Route, expect

from browsing import Tab, ask, tab
from serving import Running

TEXT = """# Rivers

A *short* list with $x^2$ and \\(y\\):

1. one
2. two

| a | b |
|---|---|
| 1 | 2 |

```python
def river(level):
    return level + 1
```

$$\\frac{a}{b}$$

[a link](https://example.org/) costs $5 and $6.
"""
HOSTILE = """<img src=x onerror="window.ran = 1"><script>window.ran = 2</script>
<a href="javascript:window.ran = 3">x</a> [y](javascript:window.ran=4)
<svg onload="window.ran = 5"></svg><iframe src="data:text/html,x"></iframe>
<style>body { display: none }</style><form action="/x"><input autofocus></form>
$\\href{javascript:window.ran=6}{z}$ `</code><img src=x onerror="window.ran = 7">`
```"><img src=x onerror="window.ran = 8">
code
```
<div id="log" class="error" style="position: fixed">w</div>
"""
RENDER = """async (text) => {
    const { readable, render } = await import("/page/chat/reading.js");
    await readable();
    const place = document.createElement("div");
    place.className = "prose shown";
    place.style.display = "block";
    document.querySelector("main").append(place);
    render(place, text);
}"""


def test_markdown_code_and_maths_are_shown(page: Page) -> None:
    page.evaluate(RENDER, TEXT)
    shown = page.locator(".shown")
    expect(shown.locator("h1")).to_have_text("Rivers")
    expect(shown.locator("ol li")).to_have_text(["one", "two"])
    expect(shown.locator("td")).to_have_text(["1", "2"])
    expect(shown.locator(".hljs-keyword").first).to_have_text("def")
    assert shown.locator("math").count() == 3
    expect(shown.locator("math mfrac")).to_have_count(1)
    link = shown.locator("a")
    assert link.get_attribute("rel") == "noopener noreferrer"
    # prices are no maths
    expect(shown).to_contain_text("costs $5 and $6.")
    colour = "node => getComputedStyle(node).color"
    keyword = shown.locator(".hljs-keyword").first.evaluate(colour)
    assert keyword != shown.locator("pre code").evaluate(colour)
    expect(shown.locator(".code-bar > span")).to_have_text("python")
    shown.get_by_role("button", name="Wrap").click()
    expect(shown.locator("pre")).to_have_class("wrapped")


def test_hostile_markdown_does_nothing(open_tab: Tab) -> None:
    page = open_tab.page
    page.evaluate(RENDER, HOSTILE)
    shown = page.locator(".shown")
    expect(shown).to_contain_text("code")
    harmful = "script, img, svg, iframe, style, form, input, [onerror], [onload], [id]"
    assert shown.locator(harmful).count() == 0
    for link in shown.locator("a").all():
        assert not (link.get_attribute("href") or "").startswith("javascript")
    assert page.evaluate("window.ran ?? null") is None
    expect(page.locator("#composer")).to_be_visible()


WRONG = """() => [...document.querySelectorAll(".prose .origin")].filter((mark) => {
    const round = document.querySelectorAll(".round")[mark.dataset.round];
    const tokens = [...round.querySelectorAll(`.${mark.classList[1]}`)];
    return !tokens.map((token) => token.textContent).join("").includes(mark.textContent);
}).length"""
"""Marks of an answer to read that are not in the tokens of their pass."""


def test_answers_are_read_first_and_show_origins(browser: Browser, served: Running):
    with tab(browser) as opened:
        page = opened.page
        page.goto(served.url)
        ask(page, "Write a long list of animals.", tokens="48")
        expect(page.locator(".turn .answer")).to_be_hidden()
        text = page.locator(".answer").text_content() or ""
        # the bundled model numbers its lines
        expect(page.locator(".prose li").first).to_have_text(
            text.splitlines()[0].removeprefix("1. ")
        )
        assert page.locator(".prose .origin.accepted").count() > 8
        assert page.evaluate(WRONG) == 0
        mark = page.locator(".prose .origin.accepted").nth(4)
        number = int(mark.get_attribute("data-round") or "") + 1
        mark.click()
        expect(page.locator("#stage h2")).to_contain_text(f"Pass {number} of")
        page.get_by_text("Tokens", exact=True).click()
        expect(page.locator(".turn .prose")).to_be_hidden()
        page.reload()
        expect(page.locator("[name=view][value=tokens]")).to_be_checked()
        expect(page.locator(".answer")).to_have_text(text)


def test_reasoning_is_folded(page: Page) -> None:
    script = """async () => {
        document.body.dataset.view = "read";
        const { emptyAnswer } = await import("/page/chat/messages.js");
        const { Turn } = await import("/page/chat/turn.js");
        const { AnswerCard } = await import("/page/replay.js");
        const card = new AnswerCard("Answer", { onopen() {}, onfigures() {} });
        const acts = { edit() {}, again() {}, result() {}, grown() {}, compare: () => "", choices: () => [], context: () => 0 };
        const turn = new Turn({ question: { text: "q" }, answer: emptyAnswer(1, 0, { method: "lm" }) }, card, acts);
        document.getElementById("log").append(turn.element);
        turn.push(null, [{ reasoning_content: "Let me " }, { reasoning_content: "count." }, { content: "**So.**" }]);
        turn.end();
    }"""
    page.evaluate(script)
    folded = page.locator(".prose details")
    expect(folded.locator("summary")).to_have_text("Reasoning")
    expect(page.locator(".prose strong")).to_have_text("So.")
    expect(folded.get_by_text("Let me count.")).to_be_hidden()
    folded.locator("summary").click()
    expect(folded.get_by_text("Let me count.")).to_be_visible()


def test_calls_of_tools_are_shown_and_answered(page: Page, served: Running) -> None:
    place = {"type": "object", "properties": {"place": {"const": "the mill"}}}
    place |= {"required": ["place"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "level", "parameters": place}}
    page.get_by_text("More settings").click()
    page.locator("[name=tools]").fill("[{]")
    expect(page.locator("#tools-fault")).to_contain_text("not JSON")
    page.locator("[name=tools]").fill(json.dumps([tool]))
    expect(page.locator("#tools-fault")).to_be_empty()
    sent = []

    def forced(route: Route) -> None:
        """The model is small, and calls a tool only when it must."""
        body = route.request.post_data_json
        sent.append(body)
        if len(sent) == 1:
            body = {**body, "tool_choice": "required"}
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions", forced)
    ask(page, "How high is the river?", tokens="64")
    expect(page.locator(".call b")).to_have_text("Calls level")
    expect(page.locator(".call pre")).to_contain_text("the mill")
    page.locator(".results textarea").fill("two metres")
    page.get_by_role("button", name="Send results").click()
    expect(page.locator(".turn")).to_have_count(2)
    expect(page.locator("#status")).to_contain_text("Answer complete")
    called, result = sent[1]["messages"][1:]
    assert called["tool_calls"][0]["function"]["name"] == "level"
    assert result == {
        "role": "tool",
        "tool_call_id": called["tool_calls"][0]["id"],
        "content": "two metres",
    }
