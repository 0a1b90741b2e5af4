"""OpenAI's responses, as Codex uses them: items in, items and events out, nothing
stored.
"""

import json

import openai
import pytest

from foreword import SamplingParams
from foreword.server.dialects.ids import Ids
from foreword.server.dialects.response_items import messages_of
from foreword.server.dialects.response_output import next_item
from foreword.server.dialects.response_tools import declared
from foreword.server.output import ToolArguments, ToolCall

TALE = "Summarise: The river rose in the night and the miller moved his grain upstairs."


def test_a_response_is_the_text_of_the_library(client, llm):
    expected = llm.generate(
        [llm.render([{"role": "user", "content": TALE}])],
        SamplingParams(seed=4, max_tokens=40),
    )[0]
    got = client.responses.create(
        model="foreword-family",
        input=TALE,
        max_output_tokens=40,
        store=False,
        extra_body={"seed": 4},
    )
    assert got.output_text == expected.text
    assert (
        got.status
        == {"stop": "completed", "length": "incomplete"}[expected.finish_reason]
    )
    assert got.usage.output_tokens == len(expected.tokens)
    assert got.usage.input_tokens == len(expected.prompt_tokens)


def test_items_of_earlier_turns_are_the_conversation(client, llm):
    items = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "Define the word gasolene."}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "A fuel."}],
        },
        {"type": "message", "role": "user", "content": TALE},
    ]
    prompt = llm.render(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Define the word gasolene."},
            {"role": "assistant", "content": "A fuel."},
            {"role": "user", "content": TALE},
        ]
    )
    expected = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=20))[0]
    got = client.responses.create(
        model="foreword-family",
        input=items,
        instructions="Be brief.",
        temperature=0,
        max_output_tokens=20,
    )
    assert got.output_text == expected.text
    assert got.usage.input_tokens == len(prompt)


FOREIGN = [
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"},
    {"type": "item_reference", "id": "rs_9"},
    {"type": "message", "role": "user", "content": "List the files."},
    {
        "type": "mcp_list_tools",
        "id": "mcpl_1",
        "server_label": "notes",
        "tools": [{"name": "find"}],
    },
    {
        "type": "local_shell_call",
        "id": "lsh_1",
        "call_id": "call_1",
        "status": "completed",
        "action": {"type": "exec", "command": ["ls"]},
    },
    {
        "type": "local_shell_call_output",
        "id": "lsho_1",
        "call_id": "call_1",
        "output": [{"stdout": "a.txt", "exit_code": 0}],
    },
    {
        "type": "apply_patch_call",
        "call_id": "call_2",
        "status": "completed",
        "operation": {"type": "delete_file", "path": "a.txt"},
    },
    {
        "type": "apply_patch_call_output",
        "call_id": "call_2",
        "status": "completed",
        "output": "Done",
    },
    {
        "type": "function_call",
        "call_id": "call_3",
        "name": "view_image",
        "arguments": '{"path": "b.png"}',
    },
    {
        "type": "function_call_output",
        "call_id": "call_3",
        "output": [
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
            {"type": "input_text", "text": "b.png"},
        ],
    },
    {"type": "message", "role": "user", "content": "And now?"},
]
"""A history that began with another host."""


def call(name: str, id: str, **arguments: object) -> dict[str, object]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": id, "type": "function", "function": function}


def test_history_of_another_host_goes_on(client, llm):
    asked = [
        {"role": "assistant", "content": "[compaction]"},
        {"role": "assistant", "content": "[item_reference]"},
        {"role": "user", "content": "List the files."},
        {
            "role": "assistant",
            "content": '[mcp_list_tools] {"server_label": "notes", '
            '"tools": [{"name": "find"}]}',
            "tool_calls": [call("local_shell", "call_1", command=["ls"])],
        },
        {
            "role": "tool",
            "tool_call_id": "call_1",
            "content": '{"stdout": "a.txt", "exit_code": 0}',
        },
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                call("apply_patch", "call_2", type="delete_file", path="a.txt", diff="")
            ],
        },
        {"role": "tool", "tool_call_id": "call_2", "content": "Done"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call("view_image", "call_3", path="b.png")],
        },
        {
            "role": "tool",
            "tool_call_id": "call_3",
            "content": "[an image, which this model cannot see]\nb.png",
        },
        {"role": "user", "content": "And now?"},
    ]
    prompt = llm.render(asked)
    expected = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=8))[0]
    got = client.responses.create(
        model="foreword-family", input=FOREIGN, temperature=0, max_output_tokens=8
    )
    assert got.usage.input_tokens == len(prompt)
    assert got.output_text == expected.text


def test_a_stream_has_every_event_in_order(client):
    ask = dict(
        model="foreword-family",
        input=TALE,
        max_output_tokens=30,
        extra_body={"seed": 4},
    )
    whole = client.responses.create(**ask)
    events = list(client.responses.create(**ask, stream=True))
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
    assert (
        "".join(event.delta for event in events if event.type.endswith("text.delta"))
        == whole.output_text
    )
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens


def test_the_request_of_codex_is_served(client):
    """The twelve fields that it sends, with tools that only a hosted model has among
    them.
    """
    function = {
        "type": "function",
        "name": "shell",
        "description": "Run",
        "parameters": {"type": "object"},
    }
    got = client.responses.create(
        model="foreword-family",
        instructions="You are a coding agent.",
        input=[
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Say hello."}],
            }
        ],
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


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 0}, "max_tokens"),
        (
            {
                "input": [
                    {
                        "role": "user",
                        "content": [{"type": "input_image", "image_url": "x"}],
                    }
                ]
            },
            "cannot read images",
        ),
        ({"input": []}, "empty"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(client, fields, named):
    with pytest.raises(openai.BadRequestError, match=named):
        client.responses.create(**{"model": "foreword-family", "input": "x", **fields})


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


def test_a_free_form_call_is_text_for_the_client():
    item = next_item(
        ToolCall(0, "call_1", "apply_patch"), declared([PATCH], "x"), Ids()
    )
    assert item.opened()[0][1]["item"]["type"] == "custom_tool_call"
    for part in ('{"inp', 'ut": "*** Begin\\n', '+a"}'):
        assert item.push(ToolArguments(0, part, part)) == []
    delta, done, (_, closed) = item.closed()
    assert delta == (
        "response.custom_tool_call_input.delta",
        {"item_id": item.id, "delta": "*** Begin\n+a"},
    )
    assert done == (
        "response.custom_tool_call_input.done",
        {"item_id": item.id, "input": "*** Begin\n+a"},
    )
    assert closed["item"]["input"] == "*** Begin\n+a"
    assert closed["item"]["name"] == "apply_patch"


def test_free_form_tool_carries_its_grammar():
    (tool,) = declared([PATCH], "x").values()
    assert tool.function["function"]["description"] == "Edit.\nstart: PATCH"
    assert tool.function["function"]["parameters"]["required"] == ["input"]


def test_a_call_that_was_cut_off_keeps_what_there_is():
    item = next_item(
        ToolCall(0, "call_1", "apply_patch"), declared([PATCH], "x"), Ids()
    )
    item.push(ToolArguments(0, CUT, CUT))
    assert item.written["input"] == CUT


def test_names_of_namespaces_go_there_and_back():
    given = [
        {
            "type": "additional_tools",
            "role": "developer",
            "tools": [EXEC, EXEC, {"type": "web_search"}],
        }
    ]
    tools = declared([PATCH], given)
    assert list(tools) == ["apply_patch", "mcp__files__read"]
    written = next_item(ToolCall(0, "call_1", "mcp__files__read"), tools, Ids()).written
    (message,) = messages_of([written])
    assert message["tool_calls"][0]["function"]["name"] == "mcp__files__read"
    assert (written["name"], written["namespace"]) == ("read", "mcp__files__")
