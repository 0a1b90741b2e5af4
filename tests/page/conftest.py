"""A real browser, and a server with the bundled models that it opens."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from browsing import MILLISECONDS, Tab, chromium, tab
from foreword import LLM
from serving import Running, running

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the session: asyncio allows no other loop in this thread."""
    place = chromium()
    if place is None:
        pytest.skip("no Chromium is installed")
    expect.set_options(timeout=MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=place, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def served() -> Iterator[Running]:
    """A fixed number of draft tokens, however busy the machine is."""
    with LLM(slots=8, nodes=4) as llm, running(llm) as server:
        yield server


@pytest.fixture
def open_tab(browser: Browser, served: Running) -> Iterator[Tab]:
    """The page, ready, with answers as tokens; it loads nothing from elsewhere."""
    with tab(browser) as opened:
        opened.page.goto(served.url)
        expect(opened.page.locator("#served")).to_contain_text("foreword-family")
        opened.page.get_by_text("Tokens", exact=True).click()
        yield opened
        assert {
            url
            for url in opened.loaded
            if not url.startswith((served.url, "blob:", "data:"))
        } == set()


@pytest.fixture
def page(open_tab: Tab) -> Page:
    return open_tab.page
