"""Functions of the page's modules, which units.js calls in the browser."""

from pathlib import Path

from playwright.sync_api import Page

UNITS = Path(__file__).with_name("units.js").read_text("utf-8")
EXPECTED = {
    # a speed needs plain passes of the answer, or a plain answer, and no noise
    "speeds": ["1×", "–", "1.7×", "2×", "even", "–"],
    "outcomes": [
        "2.3 times as fast.",
        "nothing was drafted, so both are plain and differ by noise only.",
        "the difference is within the noise.",
        "drafting was slower here, by 98%.",
        "too few passes to compare.",
    ],
    "differing": [[1, 3], [1, 3], [0, 1]],
    "costs": [10, 15, 21, 1.75, 4, 4 * 10 / (13 + 1 + 6), 1, 3],
    "order": "last waits, first begins, AbortError, first ends, last begins, last ends",
    "read": "Reading the conversation: 2,560 of 7,979 tokens, 512 of them known from "
    "before, about 54 s left",
    "models": "Qwen2.5 Coder 0.5B Instruct · Q4_K_M, SmolLM2 135M Instruct, "
    "foreword-family",
    "reasons": [
        (
            " lm wrote this pass: 1.9 tokens in the time of one were expected; suffix "
            "1.2; plain 1."
        ),
        (
            " Plain decoding wrote this pass: 1 token in the time of one was expected; "
            "lm 0.81."
        ),
        " ngram wrote this pass; plain 1.",
        "",
        "",
    ],
    "methods": [
        "lm none ngram auto other",
        "lm none ngram auto mtp quantized tli other",
        "auto(lm, ngram) none lm ngram other",
    ],
    "examples": "Write a long list of animals, A class with tests, Explain it simply",
}


def test_functions_of_the_page(page: Page) -> None:
    assert page.evaluate(UNITS) == EXPECTED
