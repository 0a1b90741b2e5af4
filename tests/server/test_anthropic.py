"""Anthropic's own client against the server, as Claude Code uses it."""

import re
from collections.abc import Iterator

import anthropic
import pytest

from asking import MODEL, assistant, called, converse, part, system, tool_result, user
from foreword import SamplingParams
from foreword.errors import ContextExceeded
from foreword_server.errors import as_api_error
from serving import Running

TALE = "Summarise: The river rose in the night and the miller moved his grain upstairs."


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0
    ) as client:
        yield client


def test_a_message_is_the_text_of_the_library(client, llm):
    brief = "Answer in one sentence."
    prompt = llm.render([system(brief), user(TALE)])
    expected = llm.generate([prompt], SamplingParams(seed=4, max_tokens=40))[0]
    cached = part(brief, cache_control={"type": "ephemeral"})
    options = dict(system=[cached], max_tokens=40, extra_body={"seed": 4})
    got = converse(client, [user([part(TALE)])], **options)
    assert got.content[0].text == expected.text
    reasons = {"stop": "end_turn", "length": "max_tokens"}
    assert got.stop_reason == reasons[expected.finish_reason]
    assert (got.usage.input_tokens + got.usage.cache_read_input_tokens) == len(prompt)
    assert got.usage.output_tokens == len(expected.tokens)


def test_a_stream_has_every_event_in_order(client):
    ask = dict(model=MODEL, messages=[user(TALE)], max_tokens=30)
    ask["extra_body"] = {"seed": 4}
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
    ask = dict(messages=[user(TALE)], max_tokens=30, extra_body={"temperature": 0})
    text = converse(client, **ask).content[0].text
    word = text.split()[2]
    cut = converse(client, **ask, stop_sequences=["never there", word])
    assert cut.stop_reason == "stop_sequence"
    assert cut.stop_sequence == word
    assert cut.content[0].text == text[: text.index(word)]


def test_tokens_are_counted(client, llm):
    counted = client.messages.count_tokens(model=MODEL, messages=[user(TALE)])
    assert counted.input_tokens == len(llm.render([user(TALE)]))


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (user([{"type": "image", "source": {}}]), "image"),
        ({"role": "robot", "content": "x"}, "robot"),
        (user(3), "content"),
    ],
)
def test_errors_have_the_dialects_shape(client, message, named):
    with pytest.raises(anthropic.BadRequestError) as refused:
        converse(client, [message], max_tokens=5)
    body = refused.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert named in body["error"]["message"]
    assert body["request_id"] == refused.value.response.headers["x-request-id"]


def test_max_tokens_is_needed(server):
    response = server.http.post("/v1/messages", json={"messages": [user("x")]})
    assert response.status_code == 400
    assert "max_tokens" in response.json()["error"]["message"]


SEARCHED = [
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
    part("It rains."),
    {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}},
]
NOTES = dict(type="search_result", title="Notes", source="notes.md")
NOTES["content"] = [part("The river rose.")]
TEXT = {"type": "text", "media_type": "text/plain", "data": "The miller moved."}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
FOUND = [
    {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "tool_reference", "tool_name": "read"}, NOTES],
    },
    {"type": "document", "title": "Tale", "source": TEXT},
    {"type": "document", "source": PDF},
    part("And now?"),
]
FOREIGN = [user("What is new?"), assistant(SEARCHED), user(FOUND)]
"""A thread that began with Anthropic."""


def test_blocks_of_another_host_are_kept_as_text(client, llm):
    asked = [
        user("What is new?"),
        assistant(
            '[server_tool_use] {"name": "web_search", '
            '"input": {"query": "news"}}\n'
            '[web_search_tool_result] {"tool_use_id": "srvtoolu_1", '
            '"content": [{"title": "Rain"}]}\nIt rains.',
            tool_calls=[called("toolu_1", "find")],
        ),
        tool_result("toolu_1", "[the tool read]\nNotes\nnotes.md\nThe river rose."),
        user(
            "Tale\nThe miller moved.\n"
            "[a document, which this model cannot read]\nAnd now?"
        ),
    ]
    counted = client.messages.count_tokens(model=MODEL, messages=FOREIGN)
    assert counted.input_tokens == len(llm.render(asked))
    options = dict(max_tokens=8, extra_body={"temperature": 0})
    answer = converse(client, FOREIGN, **options)
    want = llm.chat(asked, SamplingParams(temperature=0, max_tokens=8))
    assert answer.content[0].text == want.text


@pytest.mark.parametrize("words", [3_000, 300_000])
def test_a_prompt_that_is_too_long_is_refused_in_words_that_clients_look_for(
    server, words
):
    """Claude Code shortens its history when it reads both numbers."""
    body = {"messages": [user("river " * words)], "max_tokens": 5}
    refused = server.http.post("/v1/messages", json=body)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["type"] == "invalid_request_error"
    words = r"prompt is too long: (\d+) tokens > (\d+) maximum"
    found = re.fullmatch(words, error["message"])
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
    names = {one["id"] for one in several}
    assert {"foreword-family:lm", "foreword-family:none"} <= names
    # a name that is not listed serves all the same
    assert server.http.get("/v1/models/foreword-family:lm").status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models"])
def test_probes_may_ask_for_the_head_alone(server, path):
    found = server.http.head(path)
    assert (found.status_code, found.content) == (200, b"")
    whole = server.http.get(path)
    assert found.headers["content-type"] == whole.headers["content-type"]
