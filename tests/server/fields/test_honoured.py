"""Fields that change the text: honoured, or refused by name."""

from typing import Any

import pytest

from asking import assistant, called, system, tool_result, user
from foreword import LLM, SamplingParams
from foreword_server.dialects.message_turns import chat_of
from foreword_server.dialects.messages import MessagesBody

ASK, BEGUN = user("Write a long list of animals."), assistant("Cat, dog,")
CHAT = "/v1/chat/completions"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


def continued(llm: LLM) -> str:
    prompt = llm.render([ASK, BEGUN], template_options={"continue_final_message": True})
    return llm.generate([prompt], SamplingParams(**GREEDY))[0].text


def test_an_answer_goes_on_with_the_last_message(server, llm):
    ask = dict(messages=[ASK, BEGUN], **GREEDY)
    answered = server.post("/v1/messages", **ask)
    going_on = dict(continue_final_message=True, add_generation_prompt=False)
    chat = server.post(CHAT, **ask, **going_on)
    expected = continued(llm)
    assert answered["content"][0]["text"] == expected
    assert chat["choices"][0]["message"]["content"] == expected
    other = server.post(CHAT, **ask)
    assert other["choices"][0]["message"]["content"] != expected


def test_the_oldest_items_are_dropped_where_the_request_allows_it(server, llm):
    call = {"type": "function_call", "call_id": "a", "name": "find", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "a", "output": "x " * 100}
    last = user("Name a river.")
    body: dict[str, Any] = {
        "instructions": "Be brief.",
        "input": [user("old " * 1000), call, result, last],
        "temperature": 0,
        "max_output_tokens": 8,
    }
    refused = server.http.post("/v1/responses", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    answer = server.post("/v1/responses", **body, truncation="auto")
    brief = system("Be brief.")
    # the call that no longer fits takes its result along
    turn = assistant("", tool_calls=[called("a", "find")])
    whole = llm.render([brief, turn, tool_result("a", "x " * 100), last])
    lengths = (len(llm.render([brief, last])), len(whole))
    assert answer["usage"]["input_tokens"] <= llm.target.context * 7 // 8
    assert answer["usage"]["input_tokens"] in lengths
    assert answer["truncation"] == "auto"
    alone = body | {"input": "old " * 3000, "truncation": "auto"}
    assert server.http.post("/v1/responses", json=alone).status_code == 400


def test_fields_of_other_servers_mean_the_same(server, llm):
    chat: dict[str, Any] = {"messages": [ASK], "temperature": 0}
    short = server.post(CHAT, **chat, n_predict=5)
    assert short["usage"]["completion_tokens"] == 5
    short = server.post("/v1/completions", prompt="The", n_predict=5, ignore_eos=True)
    assert short["usage"]["completion_tokens"] == 5
    for special in (True, False):
        options = dict(add_special_tokens=special)
        found = server.post("/v1/completions", prompt="The", max_tokens=1, **options)
        length = len(llm.tokenizer.encode("The", **options))
        assert found["usage"]["prompt_tokens"] == length
    found = server.post(CHAT, **chat, regex="(yes|no)")
    assert found["choices"][0]["message"]["content"] in ("yes", "no")
    found = server.post(CHAT, **chat, ebnf='root ::= "yes" | "no"')
    assert found["choices"][0]["message"]["content"] in ("yes", "no")
    form = {"type": "json_schema", "schema": {"enum": ["yes", "no"]}}
    ask = dict(messages=[ASK], max_tokens=20, output_format=form)
    answered = server.post("/v1/messages", **ask)
    assert answered["content"][0]["text"] in ('"yes"', '"no"')


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/responses", "conversation", "conv_1"),
        ("/v1/responses", "top_logprobs", 3),
        ("/v1/responses", "prompt", {"id": "pmpt_1"}),
        (CHAT, "options", {"num_ctx": 5}),
        (CHAT, "chat_template", "{{ messages }}"),
        ("/v1/messages", "options", {"num_ctx": 5}),
    ],
)
def test_what_is_not_served_is_refused_by_name(server, path, field, value):
    body: dict[str, Any] = (
        {"input": "Hi"} if path == "/v1/responses" else {"messages": [ASK]}
    )
    body |= {"max_tokens": 4} if path == "/v1/messages" else {}
    refused = server.http.post(path, json=body | {field: value})
    assert refused.status_code == 400
    assert f"cannot honour '{field}'" in refused.json()["error"]["message"]


EDITOR = dict(type="text_editor_20250728", name="str_replace_based_edit_tool")
EDITOR["max_characters"] = 10_000


@pytest.mark.parametrize(
    ("tool", "names"),
    [
        ({"type": "bash_20250124", "name": "bash"}, {"command", "restart"}),
        (EDITOR, {"command", "path", "file_text", "old_str", "new_str"}),
        ({"type": "memory_20250818", "name": "memory"}, {"command", "old_path"}),
    ],
)
def test_tools_that_the_client_runs_are_functions(server, tool, names):
    choice = {"type": "tool", "name": tool["name"]}
    body = dict(messages=[ASK], tools=[tool], tool_choice=choice, max_tokens=100)
    body["seed"] = 1
    stream = server.http.post("/v1/messages", json=body | {"stream": True}).text
    assert f'"name":"{tool["name"]}"' in stream
    (function,) = chat_of(MessagesBody(**body)).tools or ()
    assert names <= {*function["function"]["parameters"]["properties"]}
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    body = MessagesBody(messages=[ASK], max_tokens=1, tools=[hosted])
    assert chat_of(body).tools is None
