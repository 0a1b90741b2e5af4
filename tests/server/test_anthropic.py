"""Anthropic's own client against the server, as Claude Code uses it."""

import re
from collections.abc import Iterator

import anthropic
import pytest

from foreword import SamplingParams
from foreword.errors import ContextExceeded
from foreword.server.errors import as_api_error
from serving import Running

TALE = "Summarise: The river rose in the night and the miller moved his grain upstairs."


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0
    ) as client:
        yield client


def test_a_message_is_the_text_of_the_library(client, llm):
    system = "Answer in one sentence."
    prompt = llm.render(
        [{"role": "system", "content": system}, {"role": "user", "content": TALE}]
    )
    expected = llm.generate([prompt], SamplingParams(seed=4, max_tokens=40))[0]
    got = client.messages.create(
        model="foreword-family",
        system=[
            {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}
        ],
        messages=[{"role": "user", "content": [{"type": "text", "text": TALE}]}],
        max_tokens=40,
        extra_body={"seed": 4},
    )
    assert got.content[0].text == expected.text
    assert (
        got.stop_reason
        == {"stop": "end_turn", "length": "max_tokens"}[expected.finish_reason]
    )
    assert (got.usage.input_tokens + got.usage.cache_read_input_tokens) == len(prompt)
    assert got.usage.output_tokens == len(expected.tokens)


def test_a_stream_has_every_event_in_order(client):
    ask = dict(
        model="foreword-family",
        messages=[{"role": "user", "content": TALE}],
        max_tokens=30,
        extra_body={"seed": 4},
    )
    whole = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_stop_sequences_are_named(client):
    ask = dict(
        model="foreword-family",
        messages=[{"role": "user", "content": TALE}],
        max_tokens=30,
        extra_body={"temperature": 0},
    )
    text = client.messages.create(**ask).content[0].text
    word = text.split()[2]
    cut = client.messages.create(**ask, stop_sequences=["never there", word])
    assert cut.stop_reason == "stop_sequence"
    assert cut.stop_sequence == word
    assert cut.content[0].text == text[: text.index(word)]


def test_tokens_are_counted(client, llm):
    counted = client.messages.count_tokens(
        model="foreword-family", messages=[{"role": "user", "content": TALE}]
    )
    assert counted.input_tokens == len(llm.render([{"role": "user", "content": TALE}]))


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "user", "content": [{"type": "image", "source": {}}]}, "image"),
        ({"role": "robot", "content": "x"}, "robot"),
        ({"role": "user", "content": 3}, "content"),
    ],
)
def test_errors_have_the_dialects_shape(client, message, named):
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(
            model="foreword-family", messages=[message], max_tokens=5
        )
    body = refused.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert named in body["error"]["message"]
    assert body["request_id"] == refused.value.response.headers["x-request-id"]


def test_max_tokens_is_needed(server):
    response = server.http.post(
        "/v1/messages", json={"messages": [{"role": "user", "content": "x"}]}
    )
    assert response.status_code == 400
    assert "max_tokens" in response.json()["error"]["message"]


FOREIGN = [
    {"role": "user", "content": "What is new?"},
    {
        "role": "assistant",
        "content": [
            {
                "type": "server_tool_use",
                "id": "srvtoolu_1",
                "name": "web_search",
                "input": {"query": "news"},
            },
            {
                "type": "web_search_tool_result",
                "tool_use_id": "srvtoolu_1",
                "content": [{"title": "Rain", "encrypted_content": "gAAA"}],
            },
            {"type": "text", "text": "It rains."},
            {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "content": [
                    {"type": "tool_reference", "tool_name": "read"},
                    {
                        "type": "search_result",
                        "title": "Notes",
                        "source": "notes.md",
                        "content": [{"type": "text", "text": "The river rose."}],
                    },
                ],
            },
            {
                "type": "document",
                "title": "Tale",
                "source": {
                    "type": "text",
                    "media_type": "text/plain",
                    "data": "The miller moved.",
                },
            },
            {
                "type": "document",
                "source": {
                    "type": "base64",
                    "media_type": "application/pdf",
                    "data": "AAAA",
                },
            },
            {"type": "text", "text": "And now?"},
        ],
    },
]
"""A thread that began with Anthropic."""


def test_blocks_of_another_host_are_kept_as_text(client, llm):
    call = {
        "id": "toolu_1",
        "type": "function",
        "function": {"name": "find", "arguments": "{}"},
    }
    asked = [
        {"role": "user", "content": "What is new?"},
        {
            "role": "assistant",
            "content": '[server_tool_use] {"name": "web_search", '
            '"input": {"query": "news"}}\n'
            '[web_search_tool_result] {"tool_use_id": "srvtoolu_1", '
            '"content": [{"title": "Rain"}]}\nIt rains.',
            "tool_calls": [call],
        },
        {
            "role": "tool",
            "tool_call_id": "toolu_1",
            "content": "[the tool read]\nNotes\nnotes.md\nThe river rose.",
        },
        {
            "role": "user",
            "content": "Tale\nThe miller moved.\n"
            "[a document, which this model cannot read]\nAnd now?",
        },
    ]
    found = client.messages.count_tokens(model="foreword-family", messages=FOREIGN)
    assert found.input_tokens == len(llm.render(asked))
    answer = client.messages.create(
        model="foreword-family",
        messages=FOREIGN,
        max_tokens=8,
        extra_body={"temperature": 0},
    )
    want = llm.chat(asked, SamplingParams(temperature=0, max_tokens=8))
    assert answer.content[0].text == want.text


@pytest.mark.parametrize("words", [3_000, 300_000])
def test_a_prompt_that_is_too_long_is_refused_in_words_that_clients_look_for(
    server, words
):
    """Claude Code shortens its history when it reads both numbers."""
    body = {
        "messages": [{"role": "user", "content": "river " * words}],
        "max_tokens": 5,
    }
    refused = server.http.post("/v1/messages", json=body)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["type"] == "invalid_request_error"
    found = re.fullmatch(
        r"prompt is too long: (\d+) tokens > (\d+) maximum", error["message"]
    )
    assert found is not None, error["message"]
    assert int(found[1]) > int(found[2]) == server.service.context - 1


def test_a_prompt_and_an_answer_that_are_too_long_are_named_together():
    error = ContextExceeded("…", prompt=30, limit=100, answer=80)
    body = as_api_error(error).body(anthropic=True)
    assert body["error"]["message"] == (
        "input length and `max_tokens` exceed context limit: 30 + 80 > 100"
    )


def test_the_model_is_listed_in_the_shape_of_each_client(server, client):
    page = client.models.list()
    assert [one.id for one in page.data] == ["foreword-family"]
    assert page.has_more is False
    found = client.models.retrieve("foreword-family:lm")
    assert (found.id, found.type) == ("foreword-family:lm", "model")
    plain = server.http.get("/v1/models").json()
    assert plain["object"] == "list"
    assert [one["id"] for one in plain["data"]] == ["foreword-family"]
    several = server.http.get("/v1/models?methods=1").json()["data"]
    assert {"foreword-family:lm", "foreword-family:none"} <= {
        one["id"] for one in several
    }
    # a name that is not listed serves all the same
    assert server.http.get("/v1/models/foreword-family:lm").status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models"])
def test_probes_may_ask_for_the_head_alone(server, path):
    found = server.http.head(path)
    assert (found.status_code, found.content) == (200, b"")
    assert (
        found.headers["content-type"] == server.http.get(path).headers["content-type"]
    )
