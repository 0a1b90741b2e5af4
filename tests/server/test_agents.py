"""Requests of agents and editors: Claude Code, Codex, Open WebUI, Continue, Zed."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from asking import (
    MODEL,
    assistant,
    called,
    closed,
    part,
    system,
    tool,
    tool_result,
    user,
)
from foreword import SamplingParams
from serving import Running

ASKED = (
    "Summarise: The river rose in the night and the miller moved his grain upstairs."
)
PATH = closed(path={"enum": ["a.txt", "b.txt"]})


def events(
    server: Running, path: str, body: dict[str, Any], **headers: str
) -> list[Any]:
    """Return the data of a stream's events without [DONE], names checked."""
    response = server.http.post(
        path, json=body, headers={"accept": "text/event-stream", **headers}
    )
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        if lines["data"] != "[DONE]":
            found.append(json.loads(lines["data"]))
            assert lines.get("event", found[-1].get("type")) == found[-1].get("type")
    return found


# ---- Claude Code

CLAUDE = {
    "authorization": "Bearer none",
    "user-agent": "claude-cli/2.1.198 (external, cli)",
    "x-app": "cli",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
}
BILLS = count()


def claude(**fields: Any) -> dict[str, Any]:
    """Return a body of Claude Code, shortened to the small model's context."""
    bill = (
        "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; "
        f"cch={next(BILLS):05x};"
    )
    cached = {"cache_control": {"type": "ephemeral"}}
    use = dict(type="tool_use", id="toolu_1", name="Read", input={"path": "a.txt"})
    read = dict(type="tool_result", tool_use_id="toolu_1", is_error=False)
    read["content"] = [part("The river rose in the night.")]
    reminder = "<system-reminder>\nToday is Monday.\n</system-reminder>"
    reasoning = dict(type="thinking", thinking="I should read it.", signature="EqQB")
    now = part("Now read b.txt.", cache_control={"type": "ephemeral", "ttl": "1h"})
    reader = dict(name="Read", description="Read a file.", input_schema=PATH)
    return {
        "model": MODEL,
        "messages": [
            user([part(reminder), part("Read a.txt.", **cached)]),
            system("The server 'files' has instructions."),
            assistant([reasoning, part("I read it."), use]),
            user([read, now]),
        ],
        "system": [part(bill), part("You are a coding agent.", **cached)],
        "tools": [
            reader | {"eager_input_streaming": True},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "metadata": {"user_id": "user_0_account__session_0"},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {
            "edits": [{"type": "clear_thinking_20251015", "keep": "all"}]
        },
        "output_config": {"effort": "high"},
        "stream": True,
        **fields,
    }


def test_claude_code_streams_a_tool_call(server):
    body = claude(tool_choice={"type": "tool", "name": "Read"}, seed=1)
    found = events(server, "/v1/messages?beta=true", body, **CLAUDE)
    kinds = [one["type"] for one in found]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    starts = [one["content_block"] for one in found if "content_block" in one]
    uses = [block["name"] for block in starts if block["type"] == "tool_use"]
    assert uses == ["Read"]
    parts = [
        one["delta"]["partial_json"]
        for one in found
        if one.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert json.loads("".join(parts))["path"] in PATH["properties"]["path"]["enum"]
    assert found[-2]["delta"]["stop_reason"] == "tool_use"
    assert found[-2]["usage"]["output_tokens"] > 0
    counts = found[-2]["metrics"]["speculative_decoding"]
    assert counts["num_accepted_draft_tokens"] > 0


def test_claude_code_system_messages_without_billing(server, llm):
    asked, brief = "Define the word gasolene.", "Be brief."
    turns = [user([part(asked)]), system([part(brief)])]
    options = dict(tools=[], stream=False, thinking={"type": "disabled"})
    body = claude(messages=turns, temperature=0, max_tokens=30, **options)
    agent = system("You are a coding agent.")
    prompt = llm.render([agent, user(asked), system(brief)])
    expected = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=30))[0]
    got = server.post("/v1/messages", **body)
    assert got["content"] == [{"type": "text", "text": expected.text}]
    usage = got["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(prompt)
    assert usage["output_tokens"] == len(expected.tokens)


def test_claude_code_counts_the_tokens_that_it_is_billed_for(server):
    body = claude(stream=False, max_tokens=1)
    names = ("model", "messages", "system", "tools", "thinking")
    counted = {name: body[name] for name in names}
    path = "/v1/messages/count_tokens?beta=true"
    response = server.http.post(path, json=counted, headers=CLAUDE)
    assert response.status_code == 200, response.text
    usage = server.post("/v1/messages", **body)["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert response.json()["input_tokens"] == total


def test_claude_code_names_a_session_in_json(server):
    """It asks for titles in `output_config.format`."""
    schema = closed(title={"enum": ["The river", "The mill"]})
    got = server.post(
        "/v1/messages",
        model=MODEL,
        max_tokens=200,
        tools=[],
        metadata={"user_id": "u"},
        temperature=1,
        system=[part("Write a title.")],
        messages=[user(ASKED)],
        output_config={"format": {"type": "json_schema", "schema": schema}},
        thinking={"type": "disabled"},
    )
    assert json.loads(got["content"][0]["text"])["title"] in ("The river", "The mill")
    assert got["stop_reason"] == "end_turn"


# ---- Open WebUI, Continue, Zed, transformers


def test_open_webui_asks_for_title_and_tags(server, llm):
    listed = server.http.get("/v1/models", headers={"authorization": "Bearer none"})
    model = listed.json()["data"][0]["id"]
    messages = [system("Be brief."), user(ASKED)]
    chat = {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": 4,
        "max_tokens": 40,
        "temperature": 0.8,
        "stop": [],
        "logit_bias": {},
        "user": {"name": "ann", "id": "1"},
    }
    title = [user(f"### Task:\nWrite a title.\n{ASKED}")]
    task = dict(model=model, messages=title, stream=False, seed=4)
    task["max_completion_tokens"] = 20
    path = "/v1/chat/completions"
    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(server.post, path, **task) for _ in range(3)]
        found = events(server, path, chat)
    params = SamplingParams(temperature=0.8, seed=4, max_tokens=40)
    expected = llm.chat(messages, params)
    deltas = [one["delta"] for chunk in found for one in chunk["choices"]]
    assert "".join(one.get("content") or "" for one in deltas) == expected.text
    assert found[-1]["usage"]["completion_tokens"] == len(expected.tokens)
    assert len({one.result()["choices"][0]["message"]["content"] for one in tasks}) == 1
    assert found[-1]["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0


def test_continue_completes_with_many_stops(server, llm):
    stops = ["<fim_prefix>", "<fim_suffix>", "<|endoftext|>", "/src/"]
    stops += ["#- coding: utf-8", "```", "\n\n", "\r\n\r\n"]
    body = {
        "model": MODEL,
        "prompt": "The river rose in the",
        "max_tokens": 24,
        "temperature": 0,
        "top_p": None,
        "frequency_penalty": None,
        "presence_penalty": None,
        "stop": stops,
        "stream": True,
        "raw": True,
    }
    found = events(server, "/v1/completions", body)
    prompt = list(llm.tokenizer(body["prompt"])["input_ids"])
    params = SamplingParams(temperature=0, max_tokens=24, stop=tuple(stops))
    (expected,) = llm.generate([prompt], params)
    choices = [one for chunk in found for one in chunk["choices"]]
    assert "".join(one["text"] for one in choices) == expected.text
    assert choices[-1]["finish_reason"] == expected.finish_reason


def test_zed_goes_on_after_a_tool_result(server):
    body = {
        "model": MODEL,
        "messages": [
            system("You edit code."),
            user([part("Read a.txt."), part("Then b.")]),
            assistant(None, tool_calls=[called("call_1", "read", path="a.txt")]),
            tool_result("call_1", [part("The river rose.")]),
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 200,
        "stop": [],
        "temperature": 1.0,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "tools": [tool("read", description="Read", parameters=PATH)],
        "prompt_cache_key": "thread-1",
        "reasoning_effort": None,
        "seed": 2,
    }
    found = events(server, "/v1/chat/completions", body)
    choices = [one for chunk in found for one in chunk["choices"]]
    calls = [call for one in choices for call in one["delta"].get("tool_calls") or ()]
    assert [call["function"]["name"] for call in calls if "id" in call] == ["read"]
    assert all(call["index"] == 0 for call in calls)
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert json.loads(arguments).keys() == {"path"}
    assert choices[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("form", [json.dumps, dict])
def test_settings_of_transformers_chat_are_kept(server, llm, form):
    """It sends a generation config as JSON text, and nothing else."""
    settings = dict(do_sample=False, max_new_tokens=12, transformers_version="5.24.0")
    messages = [user(ASKED)]
    body = dict(model=MODEL, messages=messages, generation_config=form(settings))
    got = server.post("/v1/chat/completions", **body)
    expected = llm.chat(messages, SamplingParams(temperature=0, max_tokens=12))
    assert got["choices"][0]["message"]["content"] == expected.text
    assert got["usage"]["completion_tokens"] == len(expected.tokens)
    first = server.post("/v1/chat/completions", **body, max_tokens=3)
    assert first["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("config", "named"), [("{", "generation_config"), ('{"num_beams": 4}', "num_beams")]
)
def test_settings_that_cannot_be_kept_are_refused(server, config, named):
    body = {"messages": [user("x")], "generation_config": config}
    response = server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert named in response.json()["error"]["message"]


# ---- Codex

CODEX = {
    "authorization": "Bearer none",
    "originator": "codex-tui",
    "user-agent": "codex-tui/0.150.1 (Linux; x86_64)",
    "session_id": "019d6c12-17e6-7691-b810-b9c846d44539",
    "x-client-request-id": "019d6c12",
}
GRAMMAR = dict(type="grammar", syntax="lark", definition='start: "*** Begin Patch"')
PATCH = dict(type="custom", name="apply_patch", description="Edit files.")
PATCH["format"] = GRAMMAR
SPAWN = dict(type="function", name="spawn_agent", description="Start", parameters=PATH)
SHELL = dict(type="function", name="shell", description="Run.", parameters=PATH)
SHELL["strict"] = False


def said(role: str, text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": role, "content": content}


def codex(**fields: Any) -> dict[str, Any]:
    """Return the twelve fields of Codex, shortened to the small model's context."""
    return {
        "model": MODEL,
        "instructions": "You are a coding agent.",
        "input": [
            said("developer", "No network."),
            said("user", "Edit a.txt."),
            {
                "type": "reasoning",
                "summary": [],
                "content": None,
                "encrypted_content": None,
            },
            {
                "type": "custom_tool_call",
                "call_id": "call_1",
                "name": "apply_patch",
                "input": "*** Begin Patch",
            },
            {
                "type": "custom_tool_call_output",
                "call_id": "call_1",
                "output": [{"type": "input_text", "text": "OK"}],
            },
            {
                "type": "function_call",
                "call_id": "call_2",
                "namespace": "agents",
                "name": "spawn_agent",
                "arguments": '{"path": "a.txt"}',
            },
            {"type": "function_call_output", "call_id": "call_2", "output": "started"},
            said("user", "Go on."),
        ],
        "tools": [
            SHELL,
            PATCH,
            {"type": "namespace", "name": "agents", "tools": [SPAWN]},
            {"type": "web_search"},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "019d6c12",
        "client_metadata": {"x-codex-installation-id": "0"},
        "seed": 1,
        **fields,
    }


def last_item(found: list[Any]) -> dict[str, Any]:
    """Return the call of a finished response, which its events must repeat."""
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    assert found[-1]["type"] == "response.completed"
    item = found[-1]["response"]["output"][-1]
    kind = "response.output_item.done"
    assert [one["item"] for one in found if one["type"] == kind][-1] == item
    counts = found[-1]["response"]["metrics"]["speculative_decoding"]
    assert counts["num_draft_tokens"] > 0
    return item


def test_codex_is_answered_in_text(server):
    body = codex(tool_choice="none", max_output_tokens=12)
    found = events(server, "/v1/responses", body, **CODEX)
    final = found[-1]["response"]
    assert final["status"] in ("completed", "incomplete")
    kind = "response.output_text.delta"
    text = "".join(one["delta"] for one in found if one["type"] == kind)
    assert final["output"][-1]["content"][0]["text"] == text


@pytest.mark.parametrize("is_additional", [False, True])
def test_codex_calls_a_tool_of_a_namespace(server, is_additional):
    """Since 0.144 it sends tools as an item of the input."""
    body = codex(tool_choice={"type": "function", "name": "agents__spawn_agent"})
    if is_additional:
        functions = {"type": "namespace", "name": "functions", "tools": [SHELL, PATCH]}
        item = {"type": "additional_tools", "role": "developer", "id": "at_1"}
        item["tools"] = [functions, *body.pop("tools")]
        body["input"].insert(0, item)
    item = last_item(events(server, "/v1/responses", body, **CODEX))
    assert (item["type"], item["namespace"]) == ("function_call", "agents")
    assert item["name"] == "spawn_agent"
    assert json.loads(item["arguments"])["path"] in PATH["properties"]["path"]["enum"]
    whole = server.post("/v1/responses", **{**body, "stream": False})
    ids = {"id": "", "call_id": ""}
    assert whole["output"][-1] | ids == item | ids
