"""Make the pictures of docs/pictures: `python -m website.pictures [NAME…]`.

A real server with the bundled models, its page in Chromium, and `foreword demo`. The
figures in them are measured meanwhile: use a machine that does nothing else.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import (
    Browser,
    FloatRect,
    Locator,
    Page,
    expect,
    sync_playwright,
)

OUT = Path(__file__).parents[1] / "docs" / "pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MILLISECONDS = 120_000
"""Longest wait for what the page must show."""
BYTES = 120 * 1024
"""Largest picture."""
COLOURS = 128
"""Colours of a picture: text and flat areas need few."""
MARGIN = 24
"""Pixels around what is shown."""
TALE = "Summarise: The river rose in the night and the miller moved his grain upstairs."


@contextmanager
def served() -> Iterator[str]:
    """Run `foreword serve` on a free port; yield the address of its page."""
    command = [sys.executable, "-m", "foreword", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield address(server)
        finally:
            server.terminate()
            server.communicate()


def address(server: subprocess.Popen[str]) -> str:
    """Return the address that a server prints once it is ready."""
    said = []
    for line in server.stderr or ():
        said.append(line)
        if found := re.search(r"page: (http://\S+)", line):
            return found[1]
    raise SystemExit(f"the server did not start: {''.join(said)}")


@contextmanager
def opened(browser: Browser, url: str, width: int, height: int) -> Iterator[Page]:
    """Open the page in light colours and without motion."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="light",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.set_default_timeout(MILLISECONDS)
    page.goto(url)
    expect(page.locator("#served")).to_contain_text("foreword-family")
    yield page
    context.close()


def ask(page: Page, prompt: str, **settings: str) -> None:
    """Ask, and wait for the answer."""
    for name, value in settings.items():
        field = page.locator(f"#settings [name={name}]")
        tag = field.evaluate("one => one.tagName")
        field.select_option(value) if tag == "SELECT" else field.fill(value)
    page.locator("#composer textarea").fill(prompt)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("Answer complete")


def box(place: Locator) -> FloatRect:
    """Return where something is."""
    found = place.bounding_box()
    if found is None:
        raise SystemExit(f"the page does not show {place}")
    return found


def save(page: Page, name: str, *shown: Locator, above: int = 8) -> None:
    """Save the smallest picture that shows all of these, `above` pixels over them."""
    boxes = [box(one) for one in shown]
    view, margin = page.viewport_size or {"width": 0, "height": 0}, MARGIN
    left = max(0, min(one["x"] for one in boxes) - margin)
    top = max(0, min(one["y"] for one in boxes) - above)
    right = max(one["x"] + one["width"] for one in boxes) + margin
    bottom = max(one["y"] + one["height"] for one in boxes) + margin
    if bottom > view["height"] + margin:
        raise SystemExit(f"{name}: {bottom:.0f} pixels do not fit into the window")
    clip: FloatRect = {
        "x": left,
        "y": top,
        "width": min(right, view["width"]) - left,
        "height": min(bottom, view["height"]) - top,
    }
    image = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")
    file = OUT / f"{name}.png"
    image.quantize(COLOURS).save(file, optimize=True)
    if file.stat().st_size > BYTES:
        raise SystemExit(f"{file} is larger than {BYTES} bytes")


def open_branched(page: Page) -> None:
    """Open the pass with most branches whose tree is visible as a whole."""
    # a pass that only ended the text shows none of it
    rounds = page.locator(".round").filter(visible=True)
    found = {}
    for at in range(rounds.count()):
        rounds.nth(at).click()
        found[at] = branches(page)
    rounds.nth(max(found, key=lambda at: found[at])).click()


def branches(page: Page) -> tuple[bool, int, int]:
    """Return how well the open pass shows what a tree is."""
    tree = page.locator("#stage .tree")
    if not tree.count():
        return False, 0, 0
    fits = tree.evaluate("one => one.scrollWidth <= one.clientWidth")
    kept = page.locator("#stage .node.accepted").count()
    beside = page.locator("#stage .tree li + li > .node.refused").count()
    return fits, min(kept, beside), kept


def chat(browser: Browser, url: str) -> None:
    """An answer, one pass opened, and other methods below it."""
    with opened(browser, url, 1000, 1100) as page:
        ask_warm(page, nodes="4")
        page.get_by_text("What if").click()
        expect(page.locator("#chat table tr")).not_to_have_count(0)
        open_branched(page)
        shown = (page.locator(".turn"), page.locator("#stage .inside"))
        save(page, "page-chat", *shown, above=0)


def opened_pass(browser: Browser, url: str) -> None:
    """One pass alone: the draft tree, its probabilities and its times."""
    with opened(browser, url, 1680, 1000) as page:
        ask_warm(page, nodes="8")
        open_branched(page)
        save(page, "page-pass", page.locator("#stage .opened"))


def ask_warm(page: Page, nodes: str, temperature: str = "0") -> None:
    """Ask the same twice, and show the second answer: the first one warms up."""
    ask(page, TALE, seed="7", tokens="64", nodes=nodes, temperature=temperature)
    page.locator("#fresh").click()
    ask(page, TALE)


def race(browser: Browser, url: str) -> None:
    """A race and its proof."""
    with opened(browser, url, 1280, 1100) as page:
        page.get_by_role("tab", name="Race").click()
        page.locator("#settings [name=temperature]").fill("0")
        page.locator("#settings [name=tokens]").fill("64")
        # as a reader who draws its corner, so that the whole prompt is visible
        page.locator("#race-form textarea").evaluate(
            "one => one.style.height = '124px'"
        )
        run_race(page)
        run_race(page)
        shown = ("#race-form", ".lanes", ".proof")
        save(page, "page-race", *map(page.locator, shown))


def run_race(page: Page) -> None:
    """Race, and wait for the proof and for the last frame."""
    page.locator("#race-start").click()
    expect(page.locator(".proof strong")).to_contain_text("0 of ")
    expect(page.locator(".lane .token.accepted")).not_to_have_count(0)


def costs(browser: Browser, url: str) -> None:
    """What pays, with the last answer and a race on the curve."""
    with opened(browser, url, 1100, 900) as page:
        # at temperature 0 nearly all draft tokens are accepted: the curve only rises
        ask_warm(page, nodes="8", temperature="0.5")
        page.get_by_role("tab", name="Race").click()
        page.locator("#settings [name=nodes]").select_option("16")
        page.locator("#race-form textarea").fill(TALE)
        run_race(page)
        page.get_by_role("tab", name="What pays").click()
        expect(page.locator("#plot text.measured")).to_have_count(2)
        shown = ("#costs h2", "#costs-form", "#plot", "#costs-source")
        save(page, "page-costs", *map(page.locator, shown))


def drafter(browser: Browser, url: str) -> None:
    """The reader's own draft, one word of it refused."""
    with opened(browser, url, 1280, 1400) as page:
        page.locator("#settings [name=temperature]").fill("0")
        page.locator("[name=words]").fill("rose in the morning and")
        page.get_by_role("button", name="Check them").click()
        expect(page.locator("#scene-said")).to_contain_text("from one pass")
        shown = ("#scene-name", "#scene-form", "#scene-why")
        save(page, "page-drafter", *map(page.locator, shown))


def phone(browser: Browser, url: str) -> None:
    """A pass opened on a phone."""
    with opened(browser, url, 390, 844) as page:
        ask_warm(page, nodes="4")
        open_branched(page)
        shown = (page.locator(".turn"), page.locator("#stage .opened"))
        save(page, "page-phone", *shown)


def demo() -> None:
    """The terminal: `foreword demo` as a picture, and as a page of replays."""
    command = [sys.executable, "-m", "foreword", "demo"]
    files = ("--svg", str(OUT / "demo.svg"), "--html", str(OUT / "demo.html"))
    subprocess.run([*command, *files], check=True, stdout=subprocess.DEVNULL)


SCENES: dict[str, Callable[[Browser, str], None]] = {
    "page-chat": chat,
    "page-pass": opened_pass,
    "page-race": race,
    "page-costs": costs,
    "page-drafter": drafter,
    "page-phone": phone,
}
"""File name of each picture of the page -> what makes it."""


def main(names: list[str]) -> None:
    """Make all pictures, or those that are named."""
    known = [*SCENES, "demo"]
    if unknown := set(names) - set(known):
        raise SystemExit(f"unknown pictures: {unknown}. Name any of {known}")
    wanted = names or known
    if scenes := [SCENES[name] for name in wanted if name in SCENES]:
        program = next(filter(None, map(shutil.which, BROWSERS)), None)
        with served() as url, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=program, args=["--no-sandbox", "--disable-gpu"]
            )
            for scene in scenes:
                scene(browser, url)
            browser.close()
    if "demo" in wanted:
        demo()


if __name__ == "__main__":
    main(sys.argv[1:])
