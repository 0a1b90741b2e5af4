"""Responses: tools that the client runs are functions, with items of their own."""

import json
from typing import Any

import pytest

from foreword_server.dialects.client_tools import ITEMS, arguments_of, members_of
from foreword_server.dialects.response_items import choice_of
from foreword_server.dialects.response_tools import declared

ASK = "List the files."
LOCAL = {"type": "local"}
SKILL = {"name": "tidy", "description": "Tidies code.", "path": "/skills/tidy"}
CALLS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "local_shell_call": (
        {"type": "local_shell"},
        {"command": ["ls", "-a"], "timeout_ms": 50, "working_directory": "/tmp"},
        {
            "action": {
                "type": "exec",
                "command": ["ls", "-a"],
                "env": {},
                "timeout_ms": 50,
                "user": None,
                "working_directory": "/tmp",
            }
        },
    ),
    "shell_call": (
        {"type": "shell", "environment": LOCAL},
        {"commands": ["ls", 'echo "a"'], "max_output_length": 9},
        {
            "action": {
                "commands": ["ls", 'echo "a"'],
                "timeout_ms": None,
                "max_output_length": 9,
            },
            "environment": LOCAL,
        },
    ),
    "apply_patch_call": (
        {"type": "apply_patch"},
        {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"},
        {"operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"}},
    ),
}
"""Kind of item -> tool, arguments that the model writes, members of the item."""


def asked(kind: str, longer: Any = None, **more: Any) -> dict[str, Any]:
    """Return a request whose answer is one call, with `longer` arguments too."""
    tool, arguments, _ = CALLS[kind]
    arguments = arguments | (longer or {})
    called = {"name": tool["type"], "arguments": arguments}
    text = json.dumps({"tool_calls": [called]})
    return {
        "model": "foreword-family",
        "input": ASK,
        "tools": [tool],
        "extra_body": {"guided_choice": [text]},
        **more,
    }


@pytest.mark.parametrize("kind", CALLS)
def test_call_is_an_item_of_its_own_kind(client, kind):
    (item,) = client.responses.create(**asked(kind)).output
    given = item.model_dump(exclude_unset=True)
    assert type(item).__name__ in (
        "LocalShellCall",
        "ResponseFunctionShellToolCall",
        "ResponseApplyPatchToolCall",
    )
    assert given.pop("call_id").startswith("call_")
    assert given.pop("id").startswith(ITEMS[kind][2])
    assert given == {"type": kind, "status": "completed", **CALLS[kind][2]}


@pytest.mark.parametrize("kind", CALLS)
def test_stream_adds_the_item_and_ends_it(client, kind):
    events = list(client.responses.create(**asked(kind, stream=True)))
    names = [event.type for event in events]
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]
    added, done = events[2].item, events[3].item
    assert (added.status, done.status) == ("in_progress", "completed")
    assert {**done.to_dict(), "status": "in_progress"} == added.to_dict()
    assert [item.to_dict() for item in events[-1].response.output] == [done.to_dict()]
    assert done.to_dict().items() >= CALLS[kind][2].items()


@pytest.mark.parametrize("kind", CALLS)
def test_call_that_was_cut_off_does_nothing(client, kind):
    """Half of a command is another one."""
    long = "0123456789" * 100
    longer = {"command": [long], "commands": ["ls", long], "diff": long}
    # enough for its name in single letters, and too few for the rest in any tokens
    got = client.responses.create(**asked(kind, longer, max_output_tokens=120))
    (item,) = got.output
    assert got.status == "incomplete"
    cut = "in_progress" if kind == "apply_patch_call" else "incomplete"
    assert (item.type, item.status) == (kind, cut)
    assert item.to_dict().items() >= members_of(kind, "").items()


@pytest.mark.parametrize("kind", CALLS)
def test_forced_tool_is_called_as_its_item_wants(server, kind):
    """The small model would not end a free text."""
    body: dict[str, Any] = {
        "input": ASK,
        "tools": [{"type": "function", "name": "other"}, CALLS[kind][0]],
        "tool_choice": {"type": CALLS[kind][0]["type"]},
        "max_output_tokens": 60,
        "seed": 3,
    }
    (item,) = server.post("/v1/responses", **body)["output"]
    assert item["type"] == kind
    allowed = {"type": "allowed_tools", "mode": "required"}
    body["tool_choice"] = {**allowed, "tools": [body["tool_choice"]]}
    (item,) = server.post("/v1/responses", **body)["output"]
    assert item["type"] == kind


def results(kind: str, call_id: str) -> tuple[list[dict[str, Any]], str]:
    """Return forms of a result, and the text that the model reads."""
    head = {"type": f"{kind}_output"}
    called = {**head, "call_id": call_id}
    if kind == "local_shell_call":
        text = '{"exit_code": 0}'
        forms = [{**called, "output": text}, {**head, "id": call_id, "output": text}]
        return forms, text
    if kind == "shell_call":
        exited = {"type": "exit", "exit_code": 1}
        output = {"stdout": "a", "stderr": "", "outcome": exited}
        return [{**called, "output": [output]}], json.dumps(output)
    failed = {**called, "status": "failed"}
    return [{**failed, "output": "no such line"}], "failed\nno such line"


@pytest.mark.parametrize("kind", CALLS)
def test_history_is_calls_and_results_of_the_function(server, llm, kind):
    tool, arguments, _ = CALLS[kind]
    (item,) = server.post(
        "/v1/responses", **{**asked(kind), **asked(kind)["extra_body"]}
    )["output"]
    forms, text = results(kind, item["call_id"])
    function = {"name": tool["type"], "arguments": arguments}
    called = {"id": item["call_id"], "type": "function", "function": function}
    (offered,) = declared([tool], "x").values()
    prompt = llm.render(
        [
            {"role": "user", "content": ASK},
            {"role": "assistant", "content": "", "tool_calls": [called]},
            {"role": "tool", "tool_call_id": item["call_id"], "content": text},
        ],
        [offered.function],
    )
    for form in forms:
        items = [{"role": "user", "content": ASK}, item, form]
        got = server.post(
            "/v1/responses", input=items, tools=[tool], max_output_tokens=1
        )
        assert got["usage"]["input_tokens"] == len(prompt)


def test_patch_without_output_tells_its_status(server):
    """It was an error: the result has no content."""

    def read(**result: Any) -> int:
        item = {"type": "apply_patch_call_output", "call_id": "call_1", **result}
        got = server.post("/v1/responses", input=[item], max_output_tokens=1)
        return got["usage"]["input_tokens"]

    assert read(status="completed") == read(output="completed")
    assert read(status="failed") == read(output="failed")


def test_deleted_file_has_no_diff():
    gone = {"type": "delete_file", "path": "a"}
    wanted = {**gone, "diff": ""}
    assert members_of("apply_patch_call", json.dumps(wanted)) == {"operation": gone}
    item = {"operation": gone}
    assert arguments_of("apply_patch_call", item) == wanted


def test_shell_in_a_container_of_the_host_is_left_out():
    hosted = [
        {"type": "shell", "environment": {"type": "container_auto"}},
        {"type": "shell", "environment": "local"},
        {"type": "web_search"},
        {"type": ["shell"]},
    ]
    assert declared(hosted, "x") == {}
    skilled = {"type": "shell", "environment": {**LOCAL, "skills": [SKILL, 5]}}
    (tool,) = declared([skilled], "x").values()
    (_, line) = tool.function["function"]["description"].split("\n")
    assert all(part in line for part in SKILL.values())
    namespace = {"type": "namespace", "name": "n", "tools": [skilled]}
    assert list(declared([namespace], "x")) == ["shell"]
    assert choice_of({"type": "shell"})["function"] == {"name": "shell"}
