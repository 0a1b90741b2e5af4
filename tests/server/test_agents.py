"""The requests of agents and editors as they send them: Claude Code, Codex, Open WebUI,
Continue, Zed.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from foreword import SamplingParams
from serving import Running

ASKED = (
    "Summarise: The river rose in the night and the miller moved his grain upstairs."
)
PATH = {
    "type": "object",
    "properties": {"path": {"enum": ["a.txt", "b.txt"]}},
    "required": ["path"],
    "additionalProperties": False,
}
"""Closed, so that the small model cannot go on for ever."""


def events(
    server: Running, path: str, body: dict[str, Any], **headers: str
) -> list[Any]:
    """Return the data of a stream's events, checked for their names; [DONE] is left
    out.
    """
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
    return {
        "model": "foreword-family",
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "text",
                        "text": "<system-reminder>\nToday is Monday.\n</system-reminder>",
                    },
                    {
                        "type": "text",
                        "text": "Read a.txt.",
                        "cache_control": {"type": "ephemeral"},
                    },
                ],
            },
            {"role": "system", "content": "The server 'files' has instructions."},
            {
                "role": "assistant",
                "content": [
                    {
                        "type": "thinking",
                        "thinking": "I should read it.",
                        "signature": "EqQB",
                    },
                    {"type": "text", "text": "I read it."},
                    {
                        "type": "tool_use",
                        "id": "toolu_1",
                        "name": "Read",
                        "input": {"path": "a.txt"},
                    },
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "tool_use_id": "toolu_1",
                        "type": "tool_result",
                        "is_error": False,
                        "content": [
                            {"type": "text", "text": "The river rose in the night."}
                        ],
                    },
                    {
                        "type": "text",
                        "text": "Now read b.txt.",
                        "cache_control": {"type": "ephemeral", "ttl": "1h"},
                    },
                ],
            },
        ],
        "system": [
            {"type": "text", "text": bill},
            {
                "type": "text",
                "text": "You are a coding agent.",
                "cache_control": {"type": "ephemeral"},
            },
        ],
        "tools": [
            {
                "name": "Read",
                "description": "Read a file.",
                "input_schema": PATH,
                "eager_input_streaming": True,
            },
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
    starts = [
        one["content_block"] for one in found if one["type"] == "content_block_start"
    ]
    assert [block["name"] for block in starts if block["type"] == "tool_use"] == [
        "Read"
    ]
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
    turns = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Define the word gasolene."}],
        },
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
    ]
    body = claude(
        messages=turns,
        tools=[],
        stream=False,
        temperature=0,
        max_tokens=30,
        thinking={"type": "disabled"},
    )
    prompt = llm.render(
        [
            {"role": "system", "content": "You are a coding agent."},
            {"role": "user", "content": "Define the word gasolene."},
            {"role": "system", "content": "Be brief."},
        ]
    )
    expected = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=30))[0]
    got = server.post("/v1/messages", **body)
    assert got["content"] == [{"type": "text", "text": expected.text}]
    usage = got["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(prompt)
    assert usage["output_tokens"] == len(expected.tokens)


def test_claude_code_counts_the_tokens_that_it_is_billed_for(server):
    body = claude(stream=False, max_tokens=1)
    counted = {
        name: body[name]
        for name in ("model", "messages", "system", "tools", "thinking")
    }
    response = server.http.post(
        "/v1/messages/count_tokens?beta=true", json=counted, headers=CLAUDE
    )
    assert response.status_code == 200, response.text
    usage = server.post("/v1/messages", **body)["usage"]
    assert (
        response.json()["input_tokens"]
        == usage["input_tokens"] + usage["cache_read_input_tokens"]
    )


def test_claude_code_names_a_session_in_json(server):
    """It asks for titles in `output_config.format`."""
    schema = {
        "type": "object",
        "properties": {"title": {"enum": ["The river", "The mill"]}},
        "required": ["title"],
        "additionalProperties": False,
    }
    got = server.post(
        "/v1/messages",
        model="foreword-family",
        max_tokens=200,
        tools=[],
        metadata={"user_id": "u"},
        temperature=1,
        system=[{"type": "text", "text": "Write a title."}],
        messages=[{"role": "user", "content": ASKED}],
        output_config={"format": {"type": "json_schema", "schema": schema}},
        thinking={"type": "disabled"},
    )
    assert json.loads(got["content"][0]["text"])["title"] in ("The river", "The mill")
    assert got["stop_reason"] == "end_turn"


# ---- Open WebUI, Continue, Zed, transformers


def test_open_webui_asks_for_title_and_tags(server, llm):
    listed = server.http.get(
        "/v1/models", headers={"authorization": "Bearer none"}
    ).json()["data"]
    model = listed[0]["id"]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": ASKED},
    ]
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
    task = {
        "model": model,
        "messages": [
            {"role": "user", "content": f"### Task:\nWrite a title.\n{ASKED}"}
        ],
        "stream": False,
        "max_completion_tokens": 20,
        "seed": 4,
    }
    with ThreadPoolExecutor(4) as pool:
        tasks = [
            pool.submit(server.post, "/v1/chat/completions", **task) for _ in range(3)
        ]
        found = events(server, "/v1/chat/completions", chat)
    expected = llm.generate(
        [llm.render(messages)], SamplingParams(temperature=0.8, seed=4, max_tokens=40)
    )[0]
    text = "".join(
        part["choices"][0]["delta"].get("content") or ""
        for part in found
        if part["choices"]
    )
    assert text == expected.text
    assert found[-1]["usage"]["completion_tokens"] == len(expected.tokens)
    assert len({one.result()["choices"][0]["message"]["content"] for one in tasks}) == 1
    assert found[-1]["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0


def test_continue_completes_with_many_stops(server, llm):
    stops = [
        "<fim_prefix>",
        "<fim_suffix>",
        "<|endoftext|>",
        "/src/",
        "#- coding: utf-8",
        "```",
        "\n\n",
        "\r\n\r\n",
    ]
    body = {
        "model": "foreword-family",
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
    expected = llm.generate(
        [prompt], SamplingParams(temperature=0, max_tokens=24, stop=tuple(stops))
    )[0]
    assert (
        "".join(part["choices"][0]["text"] for part in found if part["choices"])
        == expected.text
    )
    assert [part["choices"][0]["finish_reason"] for part in found if part["choices"]][
        -1
    ] == expected.finish_reason


def test_zed_goes_on_after_a_tool_result(server):
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "read", "arguments": '{"path": "a.txt"}'},
    }
    body = {
        "model": "foreword-family",
        "messages": [
            {"role": "system", "content": "You edit code."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Read a.txt."},
                    {"type": "text", "text": "Then b."},
                ],
            },
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {
                "role": "tool",
                "content": [{"type": "text", "text": "The river rose."}],
                "tool_call_id": "call_1",
            },
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 200,
        "stop": [],
        "temperature": 1.0,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "tools": [
            {
                "type": "function",
                "function": {"name": "read", "description": "Read", "parameters": PATH},
            }
        ],
        "prompt_cache_key": "thread-1",
        "reasoning_effort": None,
        "seed": 2,
    }
    found = events(server, "/v1/chat/completions", body)
    calls = [
        call
        for part in found
        for one in part["choices"]
        for call in one["delta"].get("tool_calls") or ()
    ]
    assert [call["function"]["name"] for call in calls if "id" in call] == ["read"]
    assert all(call["index"] == 0 for call in calls)
    assert set(
        json.loads("".join(call["function"]["arguments"] for call in calls))
    ) == {"path"}
    assert [one["finish_reason"] for part in found for one in part["choices"]][
        -1
    ] == "tool_calls"


@pytest.mark.parametrize("form", [json.dumps, dict])
def test_settings_of_transformers_chat_are_kept(server, llm, form):
    """It sends a generation config as JSON text, and nothing else."""
    messages = [{"role": "user", "content": ASKED}]
    config = form(
        {"do_sample": False, "max_new_tokens": 12, "transformers_version": "5.24.0"}
    )
    got = server.post(
        "/v1/chat/completions",
        model="foreword-family",
        messages=messages,
        generation_config=config,
    )
    expected = llm.generate(
        [llm.render(messages)], SamplingParams(temperature=0, max_tokens=12)
    )[0]
    assert got["choices"][0]["message"]["content"] == expected.text
    assert got["usage"]["completion_tokens"] == len(expected.tokens)
    first = server.post(
        "/v1/chat/completions",
        model="foreword-family",
        messages=messages,
        generation_config=config,
        max_tokens=3,
    )
    assert first["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("config", "named"), [("{", "generation_config"), ('{"num_beams": 4}', "num_beams")]
)
def test_settings_that_cannot_be_kept_are_refused(server, config, named):
    body = {"messages": [{"role": "user", "content": "x"}], "generation_config": config}
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
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {
        "type": "grammar",
        "syntax": "lark",
        "definition": 'start: "*** Begin Patch"',
    },
}
SPAWN = {
    "type": "function",
    "name": "spawn_agent",
    "description": "Start",
    "parameters": PATH,
}
SHELL = {
    "type": "function",
    "name": "shell",
    "description": "Run.",
    "strict": False,
    "parameters": PATH,
}


def codex(**fields: Any) -> dict[str, Any]:
    """Return the twelve fields of Codex, shortened to the small model's context."""
    return {
        "model": "foreword-family",
        "instructions": "You are a coding agent.",
        "input": [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "No network."}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Edit a.txt."}],
            },
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
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Go on."}],
            },
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
    assert [one["item"] for one in found if one["type"] == "response.output_item.done"][
        -1
    ] == item
    assert (
        found[-1]["response"]["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    )
    return item


def test_codex_is_answered_in_text(server):
    found = events(
        server,
        "/v1/responses",
        codex(tool_choice="none", max_output_tokens=12),
        **CODEX,
    )
    final = found[-1]["response"]
    assert final["status"] in ("completed", "incomplete")
    text = "".join(
        one["delta"] for one in found if one["type"] == "response.output_text.delta"
    )
    assert final["output"][-1]["content"][0]["text"] == text


@pytest.mark.parametrize("is_additional", [False, True])
def test_codex_calls_a_tool_of_a_namespace(server, is_additional):
    """Since 0.144 it sends tools as an item of the input."""
    body = codex(tool_choice={"type": "function", "name": "agents__spawn_agent"})
    if is_additional:
        tools = [
            {"type": "namespace", "name": "functions", "tools": [SHELL, PATCH]},
            *body.pop("tools"),
        ]
        body["input"].insert(
            0,
            {
                "type": "additional_tools",
                "role": "developer",
                "id": "at_1",
                "tools": tools,
            },
        )
    item = last_item(events(server, "/v1/responses", body, **CODEX))
    assert (item["type"], item["namespace"], item["name"]) == (
        "function_call",
        "agents",
        "spawn_agent",
    )
    assert json.loads(item["arguments"])["path"] in PATH["properties"]["path"]["enum"]
    whole = server.post("/v1/responses", **{**body, "stream": False})
    assert {**whole["output"][-1], "id": "", "call_id": ""} == {
        **item,
        "id": "",
        "call_id": "",
    }
