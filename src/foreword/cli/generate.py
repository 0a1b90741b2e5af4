"""`foreword generate`: a prompt in, a completion out, or many. Knows where prompts come from and where texts go."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli import early, edge, options, show
from foreword.cli.bundles import Driving, Guessing, Sampling, bundled
from foreword.errors import InvalidRequest

if TYPE_CHECKING:
    from foreword.llm import LLM
    from foreword.params import SamplingParams

PromptFile = Annotated[
    Path | None, typer.Option("--prompt-file", "-f", exists=True, dir_okay=False, help="Read the prompt from a file.")
]
Chat = Annotated[
    bool | None,
    typer.Option(
        "--chat/--raw",
        help="Use the model's chat template (one last line end of a file or of standard input is left out), or take "
        "the text as it is. Default: the template, if there is one.",
    ),
]
Count = Annotated[
    int, typer.Option("--n", "-n", help="Answers to each prompt, with seeds counted up.", min=1, metavar="N")
]
Batch = Annotated[
    Path | None,
    typer.Option(
        "--batch",
        help='Answer every line of a file: {"prompt": "…"} or {"messages": […]}, with an id and sampling parameters '
        "if you like; of a .txt file, every line as it is. JSON lines come out as they are done; 1 if any failed.",
        metavar="FILE",
        callback=options.checked(lambda file: file and early.data([file])),
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="With --batch: write here, after the answers that are there. Default: stdout.",
        metavar="FILE", callback=options.checked(early.file),
    ),
]  # fmt: skip
Slots = Annotated[int | None, typer.Option("--slots", help="With --batch: so many at a time, by default 8.", min=1)]
Logprobs = Annotated[
    int | None,
    typer.Option(
        "--logprobs", help="With --json: log-probabilities, and of the N likeliest.", metavar="N",
        rich_help_panel=options.OUTPUT,
    ),
]  # fmt: skip
Prediction = Annotated[
    str,
    typer.Option(
        "--prediction", help="A text that the answer is likely to hold, for drafters to copy.", metavar="TEXT|@FILE",
        rich_help_panel=options.GUESSING,
    ),
]  # fmt: skip


SLOTS = 8
"""Prompts of a batch that run at a time when nobody says how many."""


@dataclass(frozen=True, slots=True)
class Output:
    """What is written where."""

    colour: bool
    stats: bool
    as_json: bool


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt as it was given, and without the line end that closes a file."""

    whole: str
    closed: str


@bundled
def generate(
    prompt: Annotated[str | None, typer.Argument(help="Text to answer; - reads standard input.")] = None,
    prompt_file: PromptFile = None,
    *,
    batch: Batch = None,
    out: Out = None,
    slots: Slots = None,
    chat: Chat = None,
    n: Count = 1,
    model: options.ModelName = None,
    loading: Driving,
    guessing: Guessing,
    sampling: Sampling,
    prediction: Prediction = "",
    system: options.System = None,
    logprobs: Logprobs = None,
    color: options.Colour = None,
    stats: options.Statistics = True,
    as_json: options.AsJson = False,
) -> None:
    """Write what follows a prompt, or every prompt of a file.

    The text streams to stdout as it is found, and nothing else goes there: notes and figures are on stderr.
    """
    params = replace(sampling.params(), logprobs=logprobs, prediction=predicted(prediction))
    if system is not None and chat is False:
        raise InvalidRequest("--system needs the chat template; leave --raw out")
    if logprobs is not None and not (as_json or batch):
        raise InvalidRequest("--logprobs are written with --json only; add it")
    if batch is not None:
        if prompt is not None or prompt_file is not None:
            raise InvalidRequest("give a prompt or --batch, not both")
        many = Many(batch, model, out, slots or SLOTS, n, quiet=as_json or not stats)
        _batch(many, sampling, params, (chat, system), partial(_load, model, loading, guessing))
        return
    if out is not None or slots is not None:
        raise InvalidRequest("--out and --slots go with --batch; leave them out, or give a file of prompts")
    text = _prompt(prompt, prompt_file)
    if not text.whole.strip():
        raise InvalidRequest("the prompt is empty; give some text to answer")
    llm = _load(model, loading, guessing)
    ids = read(llm, text, chat, system)
    output = Output(show.wants_colour(color), stats, as_json)
    params = sampling.fitting(llm, params, ids)
    for seed in seeds(params.seed, n):
        _write(llm, ids, replace(params, seed=seed), output)


def _load(model: str | None, loading: Driving, guessing: Guessing, **more: Any) -> LLM:
    from foreword import LLM

    return LLM(model, **loading.how, **guessing.how, **more)


@dataclass(frozen=True, slots=True)
class Many:
    """A file of prompts, and where its answers go."""

    batch: Path
    model: str | None
    out: Path | None
    slots: int
    n: int
    quiet: bool


def _batch(
    many: Many,
    sampling: Sampling,
    params: SamplingParams,
    template: tuple[bool | None, str | None],
    load: Callable[..., LLM],
) -> None:
    """Answer every line of a file. Raises Exit(1) where one failed, Exit(130) after Ctrl-C; what is written stays."""
    from foreword.cli.batch import Prompt, Runner, done, jobs, writer

    text = _decoded(many.batch.read_bytes(), str(many.batch))
    wanted = jobs(text, many.batch.name, params, partial(seeds, count=many.n), (many.model, template))
    there = done(many.out, wanted) if many.out else set()
    left = [job for job in wanted if job.key not in there]
    llm = load(slots=many.slots)

    def ids(prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return read(llm, Text(prompt, prompt), *template)
        told = [{"role": "system", "content": template[1]}] if template[1] is not None else []
        return llm.render([*told, *prompt])

    begun = perf_counter()
    with show.bar(quiet=many.quiet) as shown:
        task = shown.add_task("answers", total=len(wanted), completed=len(there))
        write = writer(many.out)

        def noted(said: Mapping[str, Any]) -> None:
            write(said)
            shown.update(task, advance=1)

        tally = Runner(llm, ids, partial(sampling.fitting, llm)).run(left, noted, many.slots)
    if not many.quiet:
        rate = tally.tokens / (perf_counter() - begun)
        edge.note(f"{tally.answers} answers, {tally.failed} failed · {tally.tokens} tokens · {rate:.0f} tok/s")
    if tally.failed:
        raise typer.Exit(1)


def predicted(given: str) -> str:
    """The text that is expected, or that of a file: @FILE."""
    if not given.startswith("@"):
        return given
    early.there(given[1:])
    return _decoded(Path(given[1:]).read_bytes(), "the prediction")


def seeds(first: int | None, count: int) -> list[int]:
    """Of each answer: counted up from the first, which is drawn where none is given."""
    start = secrets.randbits(32) if first is None else first  # short enough to type again
    return [(start + number) % 2**63 for number in range(count)]


def _prompt(argument: str | None, file: Path | None) -> Text:
    """The text to answer. Raises InvalidRequest where there is none, or two, or no text."""
    if argument is not None and file is not None:
        raise InvalidRequest("give a prompt or --prompt-file, not both")
    if argument is not None and argument != "-":
        return Text(argument, argument)
    if file is not None:
        text = _decoded(file.read_bytes(), "the prompt")
    else:
        stdin = edge.stdin()
        if argument is None and stdin.isatty():
            raise InvalidRequest('give a prompt: foreword generate "…", or - for standard input')
        try:
            text = stdin.read()
        except UnicodeDecodeError as error:
            raise _not_text("the prompt", error) from error
    closed = text.removesuffix("\n")
    return Text(text, closed.removesuffix("\r") if closed != text else text)


def _decoded(held: bytes, what: str) -> str:
    try:
        return held.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_text(what, error) from error


def _not_text(what: str, error: UnicodeDecodeError) -> InvalidRequest:
    return InvalidRequest(f"{what} is not UTF-8 text: {error.reason} at byte {error.start}")


def read(llm: LLM, text: Text, chat: bool | None, system: str | None) -> list[int]:
    """The prompt's token ids, in the chat template or as they are."""
    if chat is None:
        chat = system is not None or bool(llm.tokenizer.chat_template)
    if not chat:
        return llm.tokenizer(text.whole)["input_ids"]
    told = [{"role": "system", "content": system}] if system is not None else []
    return llm.render([*told, {"role": "user", "content": text.closed}])


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
