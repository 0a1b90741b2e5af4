"""Images in requests: each dialect's shape, one text; no image is an error."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

import tiny_vision
from asking import assistant, called, part, tool_result, user
from foreword import LLM, SamplingParams
from serving import Running, running
from tiny_vision import picture

MAX = 12


def encoded(image: Any) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tiny_vision.saved("qwen2-vl", tmp_path_factory.mktemp("vision"))
    with LLM(folder, dtype="float32", method="suffix", nodes=4) as llm:
        yield llm


@pytest.fixture(scope="module")
def served(llm: LLM) -> Iterator[Running]:
    with running(llm) as server:
        yield server


@pytest.fixture(scope="module")
def image() -> str:
    return encoded(picture(40, 24))


@pytest.fixture(scope="module")
def expected(llm: LLM) -> str:
    chat = [user([{"type": "image", "image": picture(40, 24)}, part("What?")])]
    return llm.chat(chat, SamplingParams(temperature=0, max_tokens=MAX)).text


def chat_body(*parts: dict[str, Any]) -> dict[str, Any]:
    messages = [user([*parts, part("What?")])]
    return {"messages": messages, "max_tokens": MAX, "temperature": 0}


def url(image: str) -> str:
    return f"data:image/png;base64,{image}"


def shown(address: str, **more: Any) -> dict[str, Any]:
    """Return an image as a part of a chat."""
    return {"type": "image_url", "image_url": {"url": address, **more}}


def block(image: str) -> dict[str, Any]:
    """Return an image as a part of a message of Anthropic's."""
    source = {"type": "base64", "media_type": "image/png", "data": image}
    return {"type": "image", "source": source}


def inputs(text: str, image: str) -> list[dict[str, Any]]:
    """Return an image and a text as items of a response."""
    picture = {"type": "input_image", "image_url": url(image)}
    return [{"type": "input_text", "text": text}, picture]


def test_chat_completions_read_image_urls(served, image, expected):
    texts = []
    other = shown(url(encoded(picture(40, 24, 5))))
    for image_part in (shown(url(image), detail="high"), other):
        answer = served.post("/v1/chat/completions", **chat_body(image_part))
        texts.append(answer["choices"][0]["message"]["content"])
    assert texts[0] == expected != texts[1]


def test_messages_read_image_blocks(served, image, expected):
    body = chat_body(block(image))
    answer = served.post("/v1/messages", **body)
    assert answer["content"][0]["text"] == expected
    usage = answer["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"]
    counted = served.post("/v1/messages/count_tokens", messages=body["messages"])
    assert counted["input_tokens"] == total


def test_responses_read_input_images(served, image, expected):
    body = {"input": [user(inputs("What?", image)[::-1])], "temperature": 0}
    answer = served.post("/v1/responses", **body, max_output_tokens=MAX)
    assert answer["output"][-1]["content"][0]["text"] == expected


ASKED = "Look at a.png."
SEEN = "Here it is."


def test_image_of_a_tool_is_seen_in_every_dialect(served, llm, image):
    """Codex's view_image and Claude Code's Read give such results."""
    name, called_id = "view_image", "call_1"
    result = {"type": "tool_result", "tool_use_id": called_id}
    use = dict(type="tool_use", id=called_id, name=name, input={"path": "a.png"})
    call = dict(type="function_call", call_id=called_id, name=name)
    call["arguments"] = '{"path": "a.png"}'
    output = {"type": "function_call_output", "call_id": called_id}
    turns = [
        user(ASKED),
        assistant(None, tool_calls=[called(called_id, name, path="a.png")]),
    ]
    bodies = {
        "/v1/chat/completions": {
            "messages": [
                *turns,
                tool_result(called_id, [part(SEEN), shown(url(image))]),
            ],
            "max_tokens": MAX,
        },
        "/v1/messages": {
            "messages": [
                user(ASKED),
                assistant([use]),
                user([result | {"content": [part(SEEN), block(image)]}]),
            ],
            "max_tokens": MAX,
        },
        "/v1/responses": {
            "input": [user(ASKED), call, output | {"output": inputs(SEEN, image)}],
            "max_output_tokens": MAX,
        },
    }
    placed = [
        *turns,
        tool_result(called_id, f"{SEEN}\n[its image follows]"),
        user([{"type": "image", "image": picture(40, 24)}]),
    ]
    expected = llm.chat(placed, SamplingParams(temperature=0, max_tokens=MAX))
    answers = {
        path: served.post(path, temperature=0, **body) for path, body in bodies.items()
    }
    assert [
        answers["/v1/chat/completions"]["choices"][0]["message"]["content"],
        answers["/v1/messages"]["content"][0]["text"],
        answers["/v1/responses"]["output"][-1]["content"][0]["text"],
    ] == [expected.text] * 3
    usage = answers["/v1/chat/completions"]["usage"]
    assert usage["prompt_tokens"] == len(expected.prompt_tokens)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (shown("https://example.org/cat.png"), "nothing is loaded from the network"),
        (shown("/etc/passwd"), "not base64"),
        ({"type": "image", "image": "/etc/hostname"}, "not base64"),
        (shown("data:image/png;base64,aGVsbG8="), "are no image"),
        ({"type": "image_url", "image_url": {}}, "cannot read"),
        ({"type": "image_url"}, "holds none"),
        ({"type": "input_audio", "input_audio": {"data": ""}}, "not served"),
    ],
)
def test_what_is_no_image_is_an_error_of_the_request(served, part, why):
    response = served.http.post("/v1/chat/completions", json=chat_body(part))
    assert response.status_code == 400, response.text
    assert why in response.json()["error"]["message"]


def test_pixels_of_a_prompt_are_refused_before_they_are_decoded(served):
    large = encoded(Image.new("1", (8000, 8000)))
    body = chat_body(*[shown(url(large))] * 20)
    response = served.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    assert "the first 3 have 192000000 pixels" in response.json()["error"]["message"]
    damaged = base64.b64encode(base64.b64decode(large)[:60]).decode()
    body = chat_body(*[shown(url(damaged))] * 20)
    # only headers are read
    assert served.http.post("/v1/chat/completions", json=body).json() == response.json()


@pytest.mark.parametrize("stream", [False, True])
def test_damaged_image_of_a_tool_is_an_error_of_the_request(served, image, stream):
    """The header is whole: the fault shows where pixels are read, before a forward."""
    damaged = base64.b64encode(base64.b64decode(image)[:-60]).decode()
    call = {"call_id": "call_1", "type": "function_call", "name": "view"}
    result = {"type": "function_call_output", "call_id": "call_1"}
    result["output"] = inputs(SEEN, damaged)
    items = [user(ASKED), {**call, "arguments": "{}"}, result]
    body = {"input": items, "stream": stream}
    response = served.http.post("/v1/responses", json=body)
    assert response.status_code == 400, response.text
    message = response.json()["error"]["message"]
    place = "message 3, the result of the call 'call_1'"
    assert message.startswith(f"cannot render {place}: cannot read an image: it is ")
    asked = chat_body(shown(url(damaged)))
    response = served.http.post("/v1/chat/completions", json=asked)
    message = response.json()["error"]["message"]
    assert message.startswith("cannot render message 1: cannot read an image: it is ")


def test_a_model_that_reads_text_only_says_so(image):
    with LLM(method="none") as llm, running(llm) as server:
        body = chat_body(shown(url(image)))
        response = server.http.post("/v1/chat/completions", json=body)
        assert server.http.get("/speculation").json()["images"] is False
    assert response.status_code == 400
    assert "cannot read images" in response.json()["error"]["message"]


def test_the_server_says_that_it_reads_images(served):
    assert served.http.get("/speculation").json()["images"] is True
