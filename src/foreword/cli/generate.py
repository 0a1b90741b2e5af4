"""`foreword generate`: options, input and output of completions for one prompt or a
file of prompts.
"""

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

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.bundles import Sampling, bundled, open_llm
from foreword.cli.common.prompt_text import (
    PromptText,
    decoded,
    prediction_text,
    prompt_text,
)
from foreword.errors import InvalidRequest
from foreword.options import DraftingOptions, ModelOptions

if TYPE_CHECKING:
    from foreword.api.llm import LLM
    from foreword.chats.prompts import Rendered
    from foreword.cli.batch import Prompt
    from foreword.types.params import SamplingParams

PromptArgument = Annotated[
    str | None, typer.Argument(help="Prompt text, or - for standard input.")
]
PromptFile = Annotated[
    Path | None,
    typer.Option(
        "--prompt-file", "-f", exists=True, dir_okay=False, help="File with the prompt."
    ),
]
Chat = Annotated[
    bool | None,
    typer.Option(
        "--chat/--raw",
        help="Chat template or unchanged text. Default: template, if any.",
    ),
]
Count = Annotated[
    int,
    typer.Option(
        "--n",
        "-n",
        help="Answers per prompt, with consecutive seeds.",
        min=1,
        metavar="N",
    ),
]
Batch = Annotated[
    Path | None,
    typer.Option(
        "--batch",
        help="File of prompts: JSON lines or .txt lines.",
        metavar="FILE",
        callback=options.checked(lambda file: file and early.data([file])),
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="With --batch: file to append answers to. Default: stdout.",
        metavar="FILE",
        callback=options.checked(early.file),
    ),
]
Slots = Annotated[
    int | None,
    typer.Option(
        "--slots", help="With --batch: concurrent prompts. Default: 8.", min=1
    ),
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        "--logprobs",
        help="With --json: log-probabilities, N alternatives per token.",
        metavar="N",
        rich_help_panel=options.OUTPUT,
    ),
]
Record = Annotated[
    Path | None,
    typer.Option(
        "--record",
        help="File for the recording of every round.",
        metavar="FILE",
        callback=options.checked(early.file),
        rich_help_panel=options.OUTPUT,
    ),
]
Prediction = Annotated[
    str,
    typer.Option(
        "--prediction",
        help="Text the answer is likely to contain.",
        metavar="TEXT|@FILE",
        rich_help_panel=options.DRAFTING,
    ),
]

SLOTS = 8
"""Prompts of a batch that run at the same time by default."""


@dataclass(frozen=True, slots=True)
class Output:
    """Options of the output."""

    colour: bool
    stats: bool
    as_json: bool
    record: Path | None


@bundled
def generate(
    prompt: PromptArgument = None,
    prompt_file: PromptFile = None,
    *,
    batch: Batch = None,
    out: Out = None,
    slots: Slots = None,
    chat: Chat = None,
    n: Count = 1,
    model: options.ModelName = None,
    draft: options.DraftName = None,
    loading: ModelOptions,
    drafting: DraftingOptions,
    sampling: Sampling,
    prediction: Prediction = "",
    system: options.System = None,
    image: options.Images = None,
    logprobs: Logprobs = None,
    record: Record = None,
    color: options.Colour = None,
    stats: options.Statistics = True,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Generate the answer to a prompt, or to every prompt of a file.

    The text streams to stdout; notes and statistics go to stderr. With the chat
    template, the final line end of a file or of standard input is left out.

    A line of a --batch file is {"prompt": "…"} or {"messages": […]}, with an optional
    id and sampling parameters; in a .txt file every line is a prompt. JSON lines are
    written as answers finish. The exit code is 1 if any failed.
    """
    params = replace(
        sampling.params(),
        logprobs=logprobs,
        prediction=prediction_text(prediction),
        trace=record is not None,
    )
    _check_template(chat, needed=system is not None or bool(image))
    _check_output(params, as_json=as_json, answers=n if batch is None else None)
    _check_input(batch, (prompt, prompt_file, image or None), (out, slots))
    opening = partial(open_llm, model, draft, loading, drafting)
    if batch is not None:
        is_quiet = as_json or quiet or not stats
        many = Many(batch, model, out, slots or SLOTS, n, quiet=is_quiet)
        _batch(many, sampling, params, (chat, system), opening)
        return
    text = prompt_text(prompt, prompt_file)
    early.vision(model, image, trusted=loading.trust_remote_code)
    llm = opening()
    ids = read(llm, text, chat, system, image)
    output = Output(render.use_colour(color), stats, as_json, record)
    params = sampling.fitting(llm, params, ids)
    for seed in seeds(params.seed, n):
        _write(llm, ids, replace(params, seed=seed), output)


def _check_template(chat: bool | None, *, needed: bool) -> None:
    """Raise InvalidRequest for parts of a chat with '--raw'."""
    if needed and chat is False:
        raise InvalidRequest(
            "cannot use '--system' or '--image' with '--raw': both need the chat "
            "template"
        )


def _check_output(
    params: SamplingParams, *, as_json: bool, answers: int | None
) -> None:
    """Raise InvalidRequest for an output that could not be written.

    `answers`: to the only prompt; None for a file of prompts.
    """
    if params.logprobs is not None and not (as_json or answers is None):
        raise InvalidRequest(
            "cannot show '--logprobs': they are part of the JSON output. Add '--json'"
        )
    if params.trace and (answers is None or answers > 1):
        raise InvalidRequest(
            "cannot record several answers: '--record' writes one. Leave out '--batch' "
            "and '-n'"
        )


def _check_input(
    batch: Path | None, single: tuple[object, ...], several: tuple[object, ...]
) -> None:
    """Raise InvalidRequest for options of a single prompt with '--batch', or for a
    batch's options without it.
    """
    if batch is not None and any(one is not None for one in single):
        raise InvalidRequest(
            "cannot read two inputs: '--batch' is given with a prompt or an image. "
            "Give only one"
        )
    if batch is None and any(one is not None for one in several):
        raise InvalidRequest(
            "cannot use '--out' or '--slots' here: they go with '--batch'. Leave them "
            "out"
        )


@dataclass(frozen=True, slots=True)
class Many:
    """A file of prompts and the destination of its answers."""

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
    """Answer every line of a file.

    Raises Exit(1) if one failed, Exit(130) after Ctrl-C; written answers stay.
    """
    from foreword.cli.batch import Runner, done, jobs, writer

    text = decoded(many.batch.read_bytes(), str(many.batch))
    requests = jobs(
        text,
        many.batch.name,
        params,
        partial(seeds, count=many.n),
        (many.model, template),
    )
    finished = done(many.out, requests) if many.out else set()
    pending = [job for job in requests if job.key not in finished]
    llm = load(slots=many.slots)
    ids = partial(_ids, llm, template)
    started = perf_counter()
    with render.bar(quiet=many.quiet) as shown:
        task = shown.add_task("answers", total=len(requests), completed=len(finished))
        write = writer(many.out)

        def write_and_count(record: Mapping[str, Any]) -> None:
            write(record)
            shown.update(task, advance=1)

        tally = Runner(llm, ids, partial(sampling.fitting, llm)).run(
            pending, write_and_count, many.slots
        )
    if not many.quiet:
        rate = tally.tokens / (perf_counter() - started)
        runtime.note(
            f"{tally.answers} answers, {tally.failed} failed · {tally.tokens} tokens · "
            f"{rate:.0f} tok/s"
        )
    if tally.failed:
        raise typer.Exit(1)


def _ids(
    llm: LLM, template: tuple[bool | None, str | None], prompt: Prompt
) -> Rendered:
    """Return the token ids of a prompt of a file: of a text or of messages."""
    if isinstance(prompt, str):
        return read(llm, PromptText(prompt, prompt), *template)
    opening = (
        [{"role": "system", "content": template[1]}] if template[1] is not None else []
    )
    return llm.render([*opening, *prompt])


def seeds(first: int | None, count: int) -> list[int]:
    """Return the seed of each answer: consecutive from the first, which is random if
    None.
    """
    # short enough to type again
    start = secrets.randbits(32) if first is None else first
    return [(start + number) % 2**63 for number in range(count)]


def read(
    llm: LLM,
    text: PromptText,
    chat: bool | None,
    system: str | None,
    images: list[Path] | None = None,
) -> Rendered:
    """Return the token ids of the prompt, in the chat template or unchanged."""
    if chat is None:
        chat = system is not None or bool(images or llm.tokenizer.chat_template)
    if not chat:
        return llm.tokenizer(text.whole)["input_ids"]
    opening = [{"role": "system", "content": system}] if system is not None else []
    return llm.render([*opening, early.message(text.closed, images)])


def _write(llm: LLM, ids: Rendered, params: SamplingParams, output: Output) -> None:
    from foreword.cli.common.session import follow

    if output.as_json:
        answer = follow(llm, ids, params, lambda _: None)
        details = {
            "model": llm.target.name,
            "method": llm.method,
            "prompt_tokens": len(ids),
        }
        sys.stdout.write(
            json.dumps(answer.as_json() | details, ensure_ascii=False) + "\n"
        )
    else:
        writer = render.Writer(output.colour)
        answer = follow(llm, ids, params, writer)
        writer.end()
        if output.stats and output.colour:
            render.notes().print(render.legend())
    if output.stats:
        runtime.note(render.summary(answer))
    if output.record is not None:
        from foreword.recording import Recording

        Recording.of(llm, params, answer).write(output.record)
        runtime.note(f"saved the recording; see it with: foreword view {output.record}")
    if answer.interrupted:
        raise typer.Exit(130)
