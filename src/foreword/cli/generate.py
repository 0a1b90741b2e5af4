"""`foreword generate`: one prompt in, one completion out. Knows where the prompt comes from and where the text goes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli import edge, options, show
from foreword.errors import InvalidRequest

if TYPE_CHECKING:
    from foreword.llm import LLM
    from foreword.params import SamplingParams

PromptFile = Annotated[
    Path | None, typer.Option("--prompt-file", "-f", exists=True, dir_okay=False, help="Read the prompt from a file.")
]
Chat = Annotated[
    bool | None, typer.Option("--chat/--raw", help="Use the model's chat template, or not. Default: if it has one.")
]


@dataclass(frozen=True, slots=True)
class Output:
    """What is written where."""

    colour: bool
    stats: bool
    as_json: bool


def generate(
    prompt: Annotated[str | None, typer.Argument(help="Text to answer; - reads standard input.")] = None,
    prompt_file: PromptFile = None,
    *,
    chat: Chat = None,
    model: options.ModelName = None,
    draft: options.DraftName = None,
    dtype: options.DtypeName = "auto",
    device: options.Device = "auto",
    way: options.Way = None,
    method: options.MethodName = None,
    rule: options.RuleName = "match",
    width: options.WidthName = None,
    nodes: options.Nodes = None,
    temperature: options.Temperature = 1.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    max_tokens: options.MaxTokens = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    system: options.System = None,
    color: options.Colour = None,
    stats: options.Statistics = True,
    as_json: options.AsJson = False,
) -> None:
    """Write what follows a prompt.

    The text streams to stdout as it is found, and nothing else goes there: notes and figures are on stderr.
    """
    text = _prompt(prompt, prompt_file)
    if not text.strip():
        raise InvalidRequest("the prompt is empty; give some text to answer")
    if system is not None and chat is False:
        raise typer.BadParameter("--system needs the chat template; leave --raw out")
    from foreword import LLM, SamplingParams
    from foreword.cli.answer import fitting

    params = SamplingParams(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, stop=tuple(stop or ())
    )
    if max_tokens is not None:
        params = replace(params, max_tokens=max_tokens)
    llm = LLM(
        model, draft=draft, method=method, rule=rule, width=width, nodes=nodes, dtype=dtype, device=device, way=way
    )
    ids = _read(llm, text, chat, system)
    params = replace(params, max_tokens=fitting(llm, ids, max_tokens))
    _write(llm, ids, params, Output(show.wants_colour(color), stats, as_json))


def _prompt(argument: str | None, file: Path | None) -> str:
    """The text to answer. Raises BadParameter where there is none, or two, or no text."""
    if argument is not None and file is not None:
        raise typer.BadParameter("give a prompt or --prompt-file, not both")
    try:
        if file is not None:
            return file.read_text(encoding="utf-8")
        if argument is not None and argument != "-":
            return argument
        if argument is None and sys.stdin.isatty():
            raise typer.BadParameter('give a prompt: foreword generate "…", or - for standard input')
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"the prompt is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _read(llm: LLM, text: str, chat: bool | None, system: str | None) -> list[int]:
    """The prompt's token ids, in the chat template or as they are."""
    if chat is None:
        chat = system is not None or bool(llm.tokenizer.chat_template)
    if not chat:
        return llm.tokenizer(text)["input_ids"]
    told = [{"role": "system", "content": system}] if system is not None else []
    return llm.render([*told, {"role": "user", "content": text}])


def _write(llm: LLM, ids: list[int], params: SamplingParams, output: Output) -> None:
    from foreword.cli.answer import follow

    if output.as_json:
        answer = follow(llm, ids, params, lambda _: None)
        about = {"model": llm.target.name, "method": llm.method, "prompt_tokens": len(ids)}
        sys.stdout.write(json.dumps(answer.as_json() | about, ensure_ascii=False) + "\n")
    else:
        writer = show.Writer(output.colour)
        answer = follow(llm, ids, params, writer)
        writer.end()
        if output.stats and output.colour:
            show.stderr().print(show.legend())
    if output.stats:
        edge.note(show.summary(answer))
    if answer.interrupted:
        raise typer.Exit(130)
