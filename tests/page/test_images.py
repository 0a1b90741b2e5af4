"""Images in the page's chat: chosen, dropped, pasted, removed; sent and shown."""

import base64
import io
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

import tiny_vision
from browsing import ask, tab
from foreword import LLM, SamplingParams
from serving import Running, running
from tiny_vision import picture, said

PROMPT = "What is this?"


def file(seed: int) -> dict[str, object]:
    """What a reader would choose."""
    buffer = io.BytesIO()
    picture(60, 40, seed).save(buffer, "PNG")
    return {
        "name": f"picture-{seed}.png",
        "mimeType": "image/png",
        "buffer": buffer.getvalue(),
    }


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tiny_vision.saved("qwen2-vl", tmp_path_factory.mktemp("vision"))
    with (
        LLM(folder, dtype="float32", method="suffix", nodes=4) as llm,
        running(llm) as server,
    ):
        yield server


@pytest.fixture
def page(browser: Browser, seeing: Running) -> Iterator[Page]:
    with tab(browser) as opened:
        opened.page.goto(seeing.url)
        expect(opened.page.locator("#attach")).to_be_visible()
        yield opened.page


def reference(seeing: Running, *seeds: int) -> str:
    chat = said(PROMPT, *(picture(60, 40, seed) for seed in seeds))
    return seeing.service.llm.chat(
        chat, SamplingParams(temperature=0, max_tokens=16)
    ).text


def transfer(page: Page, event: str, at: str, seed: int) -> None:
    """Drop or paste a file, as a browser does."""
    data = base64.b64encode(file(seed)["buffer"]).decode("ascii")  # type: ignore[arg-type]
    page.evaluate(
        """([event, at, data, name]) => {
          const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
          const held = new DataTransfer();
          held.items.add(new File([bytes], name, { type: "image/png" }));
          const init = { bubbles: true, cancelable: true };
          const given = event === "drop"
            ? new DragEvent("drop", { ...init, dataTransfer: held })
            : new ClipboardEvent("paste", { ...init, clipboardData: held });
          document.querySelector(at).dispatchEvent(given);
        }""",
        [event, at, data, f"picture-{seed}.png"],
    )


def test_a_chosen_image_goes_with_the_prompt(page, seeing):
    page.locator("#attach input").set_input_files([file(1)])
    expect(page.locator("#images img")).to_have_count(1)
    ask(page, PROMPT, tokens="16", temperature="0")
    assert page.locator(".answer").text_content() == reference(seeing, 1)
    expect(page.locator("#log .sent img")).to_have_count(1)
    expect(page.locator("#images")).to_be_hidden()


def test_images_are_dropped_pasted_and_removed(page, seeing):
    transfer(page, "drop", "#log", 2)
    expect(page.locator("#images img")).to_have_count(1)
    transfer(page, "paste", "#composer textarea", 3)
    expect(page.locator("#images img")).to_have_count(2)
    page.get_by_role("button", name="Remove image 1").click()
    expect(page.locator("#images img")).to_have_count(1)
    ask(page, PROMPT, tokens="16", temperature="0")
    assert page.locator(".answer").text_content() == reference(seeing, 3)
    assert reference(seeing, 3) != reference(seeing, 2)


@pytest.mark.slow
def test_the_next_turn_still_sees_the_image(page, seeing):
    page.locator("#attach input").set_input_files([file(1)])
    ask(page, PROMPT, tokens="16", temperature="0")
    first = page.locator(".answer").first.text_content()
    ask(page, "And now?", tokens="16", temperature="0")
    chat = [*said(PROMPT, picture(60, 40, 1)), {"role": "assistant", "content": first}]
    chat.append({"role": "user", "content": "And now?"})
    expected = seeing.service.llm.chat(
        chat, SamplingParams(temperature=0, max_tokens=16)
    ).text
    assert page.locator(".answer").last.text_content() == expected


@pytest.mark.slow
def test_a_model_that_reads_text_only_has_no_button(browser, served):
    with tab(browser) as opened:
        opened.page.goto(served.url)
        expect(opened.page.locator("#served")).to_contain_text("foreword-family")
        expect(opened.page.locator("#attach")).to_be_hidden()
        transfer(opened.page, "drop", "#log", 1)
        expect(opened.page.locator("#error")).to_contain_text(
            "this model reads text only"
        )
