"""Free-form tools of responses: called with JSON by the model, with plain text for the
client.
"""

from __future__ import annotations

from foreword.server.dialects.ids import Ids
from foreword.server.dialects.response_items import messages_of
from foreword.server.dialects.response_output import next_item
from foreword.server.dialects.response_tools import declared
from foreword.server.output import ToolArguments, ToolCall

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


def test_a_free_form_call_is_text_for_the_client() -> None:
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


def test_free_form_tool_carries_its_grammar() -> None:
    (tool,) = declared([PATCH], "x").values()
    assert tool.function["function"]["description"] == "Edit.\nstart: PATCH"
    assert tool.function["function"]["parameters"]["required"] == ["input"]


def test_a_call_that_was_cut_off_keeps_what_there_is() -> None:
    item = next_item(
        ToolCall(0, "call_1", "apply_patch"), declared([PATCH], "x"), Ids()
    )
    item.push(ToolArguments(0, CUT, CUT))
    assert item.written["input"] == CUT


def test_names_of_namespaces_go_there_and_back() -> None:
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
