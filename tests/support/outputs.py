"""Tools, and outputs of models that call them, with what is in them."""

from dataclasses import dataclass

from foreword.chats import functions_of
from foreword_server.output import (
    REASONING,
    Event,
    Markup,
    OutputParser,
    Reasoning,
    Text,
    ToolArguments,
    ToolCall,
    ToolCallEnd,
    merged,
    named_format,
)

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "strict": True,
        "parameters": CITY,
    },
}
GET = {
    "type": "function",
    "function": {"name": "get", "parameters": {"type": "object"}},
}
TOOLS = [WEATHER, GET]
"""Two tools; the name of one begins that of the other, and only one is strict."""
FUNCTIONS = functions_of(TOOLS)


@dataclass(frozen=True)
class Output:
    """An output of a model, and what it says."""

    format: str
    text: str
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""


PARIS = '{"city": "Paris", "days": 3}'
SQUARE = '{"x":[1,-2.5e3,{"a": null}],"s":"a\\"}\\u00e9 </tool_call> é\\n"}'
BOTH = (("get_weather", PARIS), ("get", SQUARE))
CODE = 'if a < b:\n    print("</p>")\n'
OUTPUTS = (
    Output(
        "hermes", "It is 2 < 3 and a\n\n{b} [c].\n", "It is 2 < 3 and a\n\n{b} [c].\n"
    ),
    Output(
        "hermes",
        "<think>\nA < B.\n\nSo <tool_call>?\n</think>\n\nI look.\n\n"
        f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>\n'
        f'<tool_call>{{"arguments":{SQUARE},"id":7,"name":"get"}}</tool_call>\nDone.',
        "I look.Done.",
        BOTH,
        "A < B.\n\nSo <tool_call>?",
    ),
    Output(
        "hermes",
        f'<tool_call>{{"name": "get_weather", "arguments": {PARIS}</tool_call> ok',
        "ok",
        BOTH[:1],
    ),
    Output(
        "qwen-coder",
        'I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nPa"r<is\n\n</parameter>\n<parameter=days>\n3\n'
        f'</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get>\n<parameter=x>\n{{"a": [1, 2]}}\n'
        f"</parameter>\n<parameter=ok>True</parameter>\n<parameter=code>\n{CODE}\n</parameter>\n</function>\n</tool_call>",
        "I look.",
        (
            ("get_weather", '{"city": "Pa\\"r<is\\n", "days": 3}'),
            (
                "get",
                (
                    '{"x": {"a": [1, 2]}, "ok": true, "code": "if a < b:\\n    '
                    'print(\\"</p>\\")\\n"}'
                ),
            ),
        ),
    ),
    Output(
        "qwen-coder",
        "<function=get>\n</function>\n</tool_call>",
        calls=(("get", "{}"),),
    ),
    Output(
        "llama",
        f'<|python_tag|>{{"type": "function", "name": "get_weather", "parameters": '
        f"{PARIS}}}; "
        f'{{"name": "get", "parameters": {SQUARE}}}',
        calls=BOTH,
    ),
    Output(
        "llama",
        '<|python_tag|>brave_search.call(query="x")',
        '<|python_tag|>brave_search.call(query="x")',
    ),
    Output(
        "mistral",
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": '
        f'"get", "arguments": {SQUARE}}}]',
        calls=BOTH,
    ),
    Output(
        "mistral-args",
        f"[THINK]Hm [1].[/THINK]I look.[TOOL_CALLS]get_weather[ARGS]{PARIS}"
        f"[TOOL_CALLS]get[CALL_ID]a1B2c3D4e[ARGS]{SQUARE}",
        "I look.",
        BOTH,
        "Hm [1].",
    ),
    Output(
        "generic",
        f'I look.\n```json\n{{"tool_calls": [{{"name": "get_weather", "arguments": '
        f"{PARIS}}}, "
        f'{{"name": "get", "arguments": {SQUARE}}}]}}\n```\nDone.',
        "I look.Done.",
        BOTH,
    ),
    Output(
        "generic",
        '{"title": "A", "name": "get"}\n```python\nx\n```',
        '{"title": "A", "name": "get"}\n```python\nx\n```',
    ),
)
"""By format: calls, content, reasoning, and what looks like a call and is none."""


def parser(format: str | None, **options: object) -> OutputParser:
    """A parser whose ids count calls: their index is the id."""
    tags = REASONING["mistral" if format == "mistral-args" else "xml"]
    ids = map(str, range(10**6))
    return OutputParser(
        named_format(format) if format else None,
        options.pop("functions", FUNCTIONS),
        **{"reasoning": tags, "new_id": lambda: next(ids), **options},
    )


def parsed(format: str | None, pieces: list[str], **options: object) -> list[Event]:
    """The joined events of a text in pieces."""
    reading = parser(format, **options)
    events = [event for piece in pieces for event in reading.push(piece)]
    return merged(events + reading.finish())


def raw(events: list[Event]) -> str:
    """The output that the events cover."""
    return "".join(
        one.text
        for one in events
        if isinstance(one, Text | Reasoning | Markup | ToolArguments)
    )


def content(events: list[Event]) -> str:
    return "".join(one.text for one in events if isinstance(one, Text))


def reasoning(events: list[Event]) -> str:
    return "".join(one.text for one in events if isinstance(one, Reasoning))


def calls(events: list[Event]) -> tuple[tuple[str, str], ...]:
    """Name and arguments of each call."""
    texts = {one.index: "" for one in events if isinstance(one, ToolCall)}
    for one in events:
        if isinstance(one, ToolArguments):
            texts[one.index] += one.json
    return tuple(
        (one.name, texts[one.index]) for one in events if isinstance(one, ToolCall)
    )


def completed(events: list[Event]) -> list[bool]:
    """Whether each call is complete."""
    return [one.complete for one in events if isinstance(one, ToolCallEnd)]
