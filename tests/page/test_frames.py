"""Tokens arrive faster than frames: the page changes at most once a frame.

`frames.py` measures the frames.
"""

from __future__ import annotations

from playwright.sync_api import Page

from browsing import watched_answer


def test_the_page_changes_at_most_once_a_frame(page: Page) -> None:
    seen = watched_answer(page, "Write a long list of animals.", 600)
    assert seen["tokens"] > 300
    rounds = page.locator(".round").count()
    # the question, the first and the last text, the facts
    assert seen["updates"] <= len(seen["gaps"]) + 4
    assert rounds > 100
