"""The page about tool calls runs, with the text of plain decoding."""

import re
from dataclasses import replace
from pathlib import Path

from foreword import LLM, SamplingParams
from foreword_server.output import OutputParser, merged, named_format
from foreword_server.output.formats import TOOL_FORMATS
from outputs import FUNCTIONS, raw

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "tool-calls.md"


def test_the_page_runs_as_plain_decoding():
    page = PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    names: dict = {}
    exec(compile(block, str(PAGE), "exec"), names)
    assert raw(names["events"])
    params = SamplingParams(max_tokens=48, temperature=0, nodes=4)
    plain = (
        LLM(method="none")
        .generate([names["prompt"]], replace(params, nodes=None))[0]
        .text
    )
    deltas = list(names["llm"].stream(names["prompt"], params))
    assert any("accepted" in delta.origins for delta in deltas)
    for name in TOOL_FORMATS:
        drafted, whole = (
            OutputParser(named_format(name), FUNCTIONS, new_id=str) for _ in range(2)
        )
        events = [event for delta in deltas for event in drafted.push(delta.text)]
        assert merged([*events, *drafted.finish()]) == merged(
            [*whole.push(plain), *whole.finish()]
        )


def test_the_page_names_every_format():
    rows = re.findall(
        r"^\| `([a-z-]+)`(?:, `([a-z-]+)`)? \|",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert {name for row in rows for name in row if name} == {*TOOL_FORMATS}
