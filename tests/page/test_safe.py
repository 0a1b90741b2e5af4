"""Untrusted text stays text, the policy holds, keys are asked for; accessibility."""

import json

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from browsing import ask, choose, more, recorded, tab, upload
from foreword_server.page.files import Shown, write_self_contained
from grids import slow_case
from owned import TALE
from serving import running

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "<!--<script>",
    "<a href='javascript:alert(3)'>",
    "\u202e\u0000\u0007\u001b[31m\u2028\ud83d\ude00",
    '"><svg onload=alert(4)>',
)


@pytest.fixture(scope="module")
def hostile() -> str:
    """A recording whose every text is markup or control characters."""
    value = json.loads(recorded(temperature=0, max_tokens=24))
    texts = iter(HOSTILE * 200)
    for one in value["rounds"]:
        one["pieces"] = [next(texts) for _ in one["pieces"]]
        one["added"]["text"] = next(texts)
        for token in one["draft"]:
            token["text"] = next(texts)
    value |= dict.fromkeys(
        ("model", "prompt", "method", "rule", "budget", "finish_reason"), HOSTILE[1]
    )
    value["answer"] = "".join(
        piece for one in value["rounds"] for piece in one["pieces"]
    )
    return json.dumps(value)


def unharmed(page: Page, answer: str) -> None:
    """Check that the texts are shown as they are, and became no element."""
    assert page.locator(".answer").last.evaluate("node => node.textContent") == answer
    assert page.locator("img, main script, a[href], svg[onload], iframe").count() == 0
    for at in range(min(3, page.locator(".round").count())):
        page.locator(".round").nth(at).click()
        expect(page.locator("#stage .node.own")).to_have_count(1)
    assert page.locator("img, main script, a[href], svg[onload], iframe").count() == 0


def test_markup_in_a_recording_is_shown_as_text(open_tab, hostile):
    upload(open_tab.page, "hostile.json", hostile)
    expect(open_tab.page.locator(".answer")).to_have_count(1)
    unharmed(open_tab.page, json.loads(hostile)["answer"])


def test_markup_in_a_single_file_is_shown_as_text(browser, hostile, tmp_path):
    file = tmp_path / "hostile.html"
    write_self_contained(file, [Shown(HOSTILE[1], hostile)], title=HOSTILE[1])
    with tab(browser) as opened:
        opened.page.goto(file.as_uri())
        unharmed(opened.page, json.loads(hostile)["answer"])
        assert opened.page.title() == HOSTILE[1]
        assert [
            url for url in opened.loaded if not url.startswith(("file:", "data:"))
        ] == []


def test_the_policy_lets_nothing_else_run(open_tab, served):
    page = open_tab.page
    policy = served.http.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    run = """() => {
        const script = document.createElement("script");
        script.textContent = "window.ran = true";
        document.body.append(script);
        document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.ran = true'>");
        return fetch("https://example.org/").then(() => "fetched", () => String(window.ran));
    }"""
    assert page.evaluate(run) == "undefined"
    open_tab.loaded[:] = [
        url
        for url in open_tab.loaded
        if "example.org" not in url and not url.endswith("/x")
    ]


def test_a_server_with_keys_asks_for_one(browser, served):
    from foreword_server.settings import hashed

    with (
        running(served.service.llm, keys=hashed(["open-sesame"])) as locked,
        tab(browser) as opened,
    ):
        opened.page.goto(locked.url)
        expect(opened.page.locator("#error")).to_contain_text("it has no API key")
        opened.page.locator("#key input").fill("open-sesame")
        opened.page.locator("#key button").click()
        expect(opened.page.locator("#served")).to_contain_text("foreword-family")
        expect(opened.page.locator("#key")).to_be_hidden()
        ask(opened.page, HOSTILE[0], tokens="8")
        assert opened.page.locator(".asked").text_content() == HOSTILE[0]
        assert opened.page.locator("img").count() == 0
        assert opened.page.locator(".round").count() > 0


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("light", 1280),
        *(
            slow_case(*layout)
            for layout in (("dark", 1280), ("light", 390), ("dark", 1920))
        ),
    ],
)
def test_axe_finds_nothing(browser, served, scheme, width):
    with tab(browser, scheme, width) as opened:
        page = opened.page
        page.goto(served.url)
        expect(page.locator("#served")).to_contain_text("foreword-family")
        clean(page)
        ask(page, TALE, tokens="32")
        more(page)
        clean(page)
        page.get_by_text("Tokens", exact=True).click()
        page.locator(".round").nth(1).click()
        clean(page)
        if width < 860:
            page.get_by_role("button", name="Close").click()
        page.get_by_role("tab", name="Side by side").click()
        choose(page, tokens="16")
        page.locator("#race-form button").click()
        expect(page.locator(".proof strong")).to_contain_text("tokens differ")
        clean(page)
        page.get_by_role("tab", name="When it helps").click()
        expect(page.locator("#verdict")).to_contain_text("plain")
        clean(page)
        # nothing is cut off
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def clean(page: Page) -> None:
    """Fail for any violation of WCAG 2.1 A and AA, and of axe's best practices."""
    found = Axe().run(page).response["violations"]
    assert [
        (one["id"], [node["html"][:160] for node in one["nodes"]]) for one in found
    ] == []


@pytest.mark.slow
def test_tabs_are_reached_by_arrow_keys(page):
    page.get_by_role("tab", name="Chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Side by side")).to_be_focused()
    expect(page.locator("#race")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#costs")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#chat")).to_be_visible()
