"""OpenAI's responses, as Codex uses them: items to items and events, not stored."""

import openai
import pytest

from asking import assistant, called, respond, system, tool_result, user
from foreword import SamplingParams
from foreword_server.dialects.ids import Ids
from foreword_server.dialects.response_items import messages_of
from foreword_server.dialects.response_output import next_item
from foreword_server.dialects.response_tools import declared
from foreword_server.output import ToolArguments, ToolCall

TALE = "Summarise: The river rose in the night and the miller moved his grain upstairs."


def said(turn):
    return {"type": "message", **turn}


def call_of(number, kind, output="", **more):
    """Return a call and its result, which have an id and a kind in common."""
    call = f"call_{number}"
    result = {"type": f"{kind}_output", "call_id": call, "output": output}
    return {"type": kind, "call_id": call, **more}, result


def test_a_response_is_the_text_of_the_library(client, llm):
    expected = llm.chat([user(TALE)], SamplingParams(seed=4, max_tokens=40))
    options = dict(max_output_tokens=40, store=False, extra_body={"seed": 4})
    got = respond(client, TALE, **options)
    assert got.output_text == expected.text
    statuses = {"stop": "completed", "length": "incomplete"}
    assert got.status == statuses[expected.finish_reason]
    assert got.usage.output_tokens == len(expected.tokens)
    assert got.usage.input_tokens == len(expected.prompt_tokens)


def test_items_of_earlier_turns_are_the_conversation(client, llm):
    asked = "Define the word gasolene."
    items = [
        user([{"type": "input_text", "text": asked}]),
        {"type": "reasoning", "id": "rs_1", "summary": []},
        said(assistant([{"type": "output_text", "text": "A fuel."}])),
        said(user(TALE)),
    ]
    turns = [system("Be brief."), user(asked), assistant("A fuel."), user(TALE)]
    expected = llm.chat(turns, SamplingParams(temperature=0, max_tokens=20))
    options = dict(instructions="Be brief.", temperature=0, max_output_tokens=20)
    got = respond(client, items, **options)
    assert got.output_text == expected.text
    assert got.usage.input_tokens == len(expected.prompt_tokens)


FOREIGN = [
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"},
    {"type": "item_reference", "id": "rs_9"},
    said(user("List the files.")),
    {
        "type": "mcp_list_tools",
        "id": "mcpl_1",
        "server_label": "notes",
        "tools": [{"name": "find"}],
    },
    *call_of(
        1,
        "local_shell_call",
        [{"stdout": "a.txt", "exit_code": 0}],
        action={"type": "exec", "command": ["ls"]},
    ),
    *call_of(
        2,
        "apply_patch_call",
        "Done",
        status="completed",
        operation={"type": "delete_file", "path": "a.txt"},
    ),
    *call_of(
        3,
        "function_call",
        [
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
            {"type": "input_text", "text": "b.png"},
        ],
        name="view_image",
        arguments='{"path": "b.png"}',
    ),
    said(user("And now?")),
]
"""A history that began with another host."""


def test_history_of_another_host_goes_on(client, llm):
    listed = '[mcp_list_tools] {"server_label": "notes", "tools": [{"name": "find"}]}'
    patch = dict(type="delete_file", path="a.txt", diff="")
    turns = [
        assistant("[compaction]"),
        assistant("[item_reference]"),
        user("List the files."),
        assistant(listed, tool_calls=[called("call_1", "local_shell", command=["ls"])]),
        tool_result("call_1", '{"stdout": "a.txt", "exit_code": 0}'),
        assistant("", tool_calls=[called("call_2", "apply_patch", **patch)]),
        tool_result("call_2", "Done"),
        assistant("", tool_calls=[called("call_3", "view_image", path="b.png")]),
        tool_result("call_3", "[an image, which this model cannot see]\nb.png"),
        user("And now?"),
    ]
    prompt = llm.render(turns)
    expected = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=8))[0]
    got = respond(client, FOREIGN, temperature=0, max_output_tokens=8)
    assert got.usage.input_tokens == len(prompt)
    assert got.output_text == expected.text


def test_a_stream_has_every_event_in_order(client):
    ask = dict(max_output_tokens=30, extra_body={"seed": 4})
    whole = respond(client, TALE, **ask)
    events = list(respond(client, TALE, **ask, stream=True))
    names = [event.type for event in events]
    assert names[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert names[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{whole.status}",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type.endswith("text.delta")]
    assert "".join(deltas) == whole.output_text
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens


def test_the_request_of_codex_is_served(client):
    """The twelve fields that it sends, with tools that only a hosted model has."""
    function = dict(type="function", name="shell", parameters={"type": "object"})
    got = respond(
        client,
        [said(user([{"type": "input_text", "text": "Say hello."}]))],
        instructions="You are a coding agent.",
        tools=[function, {"type": "web_search"}, {"type": "local_shell"}],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        stream=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        max_output_tokens=12,
        extra_body={"client_metadata": {"a": "b"}},
    )
    assert got.status in ("completed", "incomplete")
    assert got.model == "foreword-family"


IMAGE = {"type": "input_image", "image_url": "x"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 0}, "max_tokens"),
        ({"input": [user([IMAGE])]}, "cannot read images"),
        ({"input": []}, "empty"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(client, fields, named):
    with pytest.raises(openai.BadRequestError, match=named):
        respond(client, "x", **fields)


PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit.",
    "format": {"definition": "start: PATCH"},
}
EXEC = {
    "type": "namespace",
    "name": "mcp__files__",
    "tools": [{"type": "function", "name": "read", "parameters": {}}],
}

CUT = '{"input": "*** Be'


def patch_call():
    call = ToolCall(0, "call_1", "apply_patch")
    return next_item(call, declared([PATCH], "x"), Ids())


def test_a_free_form_call_is_text_for_the_client():
    item = patch_call()
    assert item.opened()[0][1]["item"]["type"] == "custom_tool_call"
    for part in ('{"inp', 'ut": "*** Begin\\n', '+a"}'):
        assert item.push(ToolArguments(0, part, part)) == []
    delta, done, (_, closed) = item.closed()
    kind, text = "response.custom_tool_call_input", "*** Begin\n+a"
    assert delta == (f"{kind}.delta", {"item_id": item.id, "delta": text})
    assert done == (f"{kind}.done", {"item_id": item.id, "input": text})
    assert closed["item"]["input"] == text
    assert closed["item"]["name"] == "apply_patch"


def test_free_form_tool_carries_its_grammar():
    (tool,) = declared([PATCH], "x").values()
    assert tool.function["function"]["description"] == "Edit.\nstart: PATCH"
    assert tool.function["function"]["parameters"]["required"] == ["input"]


def test_a_call_that_was_cut_off_keeps_what_there_is():
    item = patch_call()
    item.push(ToolArguments(0, CUT, CUT))
    assert item.written["input"] == CUT


def test_names_of_namespaces_go_there_and_back():
    more = [EXEC, EXEC, {"type": "web_search"}]
    item = {"type": "additional_tools", "role": "developer", "tools": more}
    tools = declared([PATCH], [item])
    assert list(tools) == ["apply_patch", "mcp__files__read"]
    written = next_item(ToolCall(0, "call_1", "mcp__files__read"), tools, Ids()).written
    (message,) = messages_of([written])
    assert message["tool_calls"][0]["function"]["name"] == "mcp__files__read"
    assert (written["name"], written["namespace"]) == ("read", "mcp__files__")
