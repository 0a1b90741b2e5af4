"""Pages of a real browser, and what a reader does in them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, expect

from foreword import LLM, Recording, SamplingParams

NAMES = ("chromium", "chromium-browser", "google-chrome")
MILLISECONDS = 60_000
"""Longest wait for what a page must show."""


def chromium() -> str | None:
    """Return the program of the browser; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """A page of the browser that notes what it loads and what goes wrong in it."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.page.set_default_timeout(MILLISECONDS)
        self.loaded: list[str] = []
        self.faults: list[str] = []
        self.page.on("request", lambda request: self.loaded.append(request.url))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on(
            "dialog",
            lambda dialog: (
                self.faults.append(f"dialog {dialog.message}"),
                dialog.dismiss(),
            ),
        )


@contextmanager
def tab(browser: Browser, scheme: str = "light", width: int = 1280) -> Iterator[Tab]:
    """Open a page without motion; fail if a script of it failed."""
    context = browser.new_context(
        viewport={"width": width, "height": 860},
        color_scheme=scheme,
        reduced_motion="reduce",
        accept_downloads=True,
    )
    opened = Tab(context)
    try:
        yield opened
        assert opened.faults == []
    except Exception as error:
        error.add_note(f"faults in the page: {opened.faults}")
        raise
    finally:
        context.close()


def ask(page: Page, prompt: str, **settings: str) -> None:
    """Fill the form by keys, as a reader would, and wait for the answer."""
    choose(page, **settings)
    page.locator("#composer textarea").fill(prompt)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("Answer complete")


def choose(page: Page, **settings: str) -> None:
    """Change settings; at temperature 0 the page takes no seed."""
    opener = page.locator(".opens-settings:visible")
    if is_sheet := bool(settings and opener.count()):
        opener.click()
    for name in sorted(settings, key="seed".__eq__):
        field = page.locator(f"#settings [name={name}]")
        if name in ("method", "nodes"):
            field.select_option(settings[name])
        elif name != "seed" or field.is_visible():
            field.fill(settings[name])
    if is_sheet:
        page.locator("#close-settings").click()


def more(page: Page) -> None:
    """Unfold what stands behind "…" under the last answer."""
    page.get_by_role("button", name="More of this answer").last.click()


def upload(page: Page, name: str, content: str) -> None:
    """Open a file in the page."""
    page.locator("#file").set_input_files(
        {"name": name, "mimeType": "application/json", "buffer": content.encode()}
    )


def recorded(**params: object) -> str:
    """Return the JSON of a recording made by the library."""
    with LLM(nodes=4) as llm:
        settings = SamplingParams(trace=True, **params)  # type: ignore[arg-type]
        answer = llm.generate("The river runs through", settings)[0]
        return Recording.of(llm, settings, answer).as_json()


WATCH = """() => {
    const watched = window.watched = { gaps: [], updates: 0, tokens: 0 };
    let before = performance.now();
    const frame = (now) => {
        watched.gaps.push(now - before);
        before = now;
        if (!watched.done) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    new MutationObserver(() => { watched.updates += 1; })
        .observe(document.getElementById("log"), { childList: true, subtree: true });
}"""
"""Notes the milliseconds between frames, and how often the conversation changes."""


def watched_answer(page: Page, prompt: str, tokens: int) -> dict[str, Any]:
    """Ask for a long answer; return the gaps of frames, the updates and the tokens."""
    page.evaluate(WATCH)
    ask(page, prompt, tokens=str(tokens))
    return page.evaluate(
        "() => ({ ...window.watched, done: (window.watched.done = true), "
        "tokens: document.querySelectorAll('.answer .token').length })"
    )
