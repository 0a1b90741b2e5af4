"""Measures frames a second while an answer arrives: PYTHONPATH=src:tests/support python
tests/page/frames.py
"""

import shutil
from statistics import quantiles

from playwright.sync_api import expect, sync_playwright

from browsing import watched_answer
from foreword import LLM
from serving import running

with LLM() as llm, running(llm) as server, sync_playwright() as playwright:
    browser = playwright.chromium.launch(
        executable_path=shutil.which("chromium"), args=["--no-sandbox"]
    )
    page = browser.new_page(viewport={"width": 1280, "height": 860})
    for _ in range(2):  # the first warms up
        page.goto(server.url)
        expect(page.locator("#served")).to_contain_text("foreword-family")
        seen = watched_answer(page, "Write a long list of animals.", 900)
    gaps = seen["gaps"]
    seconds, cuts = sum(gaps) / 1000, quantiles(gaps, n=100)
    pace = (
        f"{seen['tokens']} tokens in {seconds:.2f} s, {seen['tokens'] / seconds:.0f} a "
        "second"
    )
    spread = f"median {cuts[49]:.1f}, p95 {cuts[94]:.1f}, p99 {cuts[98]:.1f}"
    rate = f"{len(gaps) / seconds:.1f} frames a second"
    print(f"{pace}; {rate}; milliseconds between frames: {spread}")  # noqa: T201
    browser.close()
