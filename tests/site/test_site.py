"""The site is built without a warning, and read in a real browser."""

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser, expect, sync_playwright
from website import staging

from browsing import chromium, tab
from serving import Files, answering

ROOT = Path(__file__).parents[2]
READ = ("index", "numbers", "choose-a-method", "models", "methods/eagle", "api/python")
"""Pages that are looked at; tables, code and pictures are among them."""


@pytest.fixture(scope="module")
def site() -> Path:
    """Return the folder of the site, built from these files."""
    built = subprocess.run(
        [sys.executable, "-m", "website"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return ROOT / "build" / "site"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with answering(partial(Files, directory=str(site))) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("no Chromium is installed")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program)
        yield opened
        opened.close()


def listed(entries: list[object]) -> Iterator[str]:
    """Yield the pages of a part of the menu."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
            continue
        for below in entry.values():
            yield from listed([below] if isinstance(below, str) else below)


def test_every_page_has_one_place_in_the_menu(site):
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    places = sorted(listed(menu))
    pages = (page.relative_to(staging.STAGED) for page in staging.STAGED.rglob("*.md"))
    assert places == sorted(page.as_posix() for page in pages)


def test_reference_has_every_public_name(site):
    import foreword
    import foreword.extend

    pages = [(site / "api" / f"{name}.html") for name in ("python", "transformers")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r'id="foreword\.(?:hf\.)?(\w+)"', text))
    assert set(foreword.__all__) <= named
    extend = (site / "api" / "extend.html").read_text(encoding="utf-8")
    assert [name for name in foreword.extend.__all__ if name not in extend] == []


def test_reference_has_the_fields_of_requests_and_the_options(site):
    http = (site / "api" / "http.html").read_text(encoding="utf-8")
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/audio/transcriptions"):
        assert path in http
    assert "<code>speculative</code>" in http
    command = (site / "api" / "commands" / "bench.html").read_text(encoding="utf-8")
    assert "--limit-prompts" in command


def test_file_outside_of_the_pages_can_be_opened(site):
    page = (site / "scaling" / "containers.html").read_text(encoding="utf-8")
    links = re.findall(r'href="\.\./(files/[^"]+)"', page)
    assert len(links) > 2
    assert [link for link in links if not (site / link).exists()] == []


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")]
)
def test_pages_fit_and_load_nothing_from_elsewhere(address, browser, width, scheme):
    for name in READ:
        with tab(browser, scheme, width) as opened:
            opened.page.goto(f"{address}/{name}.html")
            expect(opened.page.locator("h1").first).to_be_visible()
            wide = opened.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, name
            missing = opened.page.evaluate(
                "[...document.images].filter(one => !one.naturalWidth).length"
            )
            assert missing == 0, name
            assert [url for url in opened.loaded if address not in url] == []


def test_search_finds_a_page(address, browser):
    with tab(browser) as opened:
        page = opened.page
        page.goto(f"{address}/index.html")
        field = page.get_by_role("combobox", name="Search", include_hidden=True)
        field.wait_for(state="attached")  # before that, the keys mean nothing
        page.keyboard.press("Control+k")
        field.fill("early exit")
        expect(page.get_by_text(re.compile(r"^\d+ results$"))).to_be_visible()
        field.press("Enter")
        expect(page).to_have_url(re.compile(r"methods/layers\.html"))
