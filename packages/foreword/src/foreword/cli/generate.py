"""`foreword generate`: options, input and output of completions for one prompt."""

import json
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.bundles import Sampling, bundled, open_llm
from foreword.cli.common.prompt_text import PromptText, prediction_text, prompt_text
from foreword.errors import InvalidRequest
from foreword.options import DraftingOptions, ModelOptions

if TYPE_CHECKING:
    from foreword.api.llm import LLM
    from foreword.chats.prompts import Rendered
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
    options.option(
        None, "--n -n", "Answers per prompt, with consecutive seeds.", "N", least=1
    ),
]
Logprobs = Annotated[
    int | None,
    options.option(
        options.OUTPUT,
        "--logprobs",
        "With --json: log-probabilities, N alternatives per token.",
        "N",
    ),
]
Record = Annotated[
    Path | None,
    options.option(
        options.OUTPUT,
        "--record",
        "File for the recording of every round.",
        "FILE",
        check=early.file,
    ),
]
Prediction = Annotated[
    str,
    options.option(
        options.DRAFTING,
        "--prediction",
        "Text the answer is likely to contain.",
        "TEXT|@FILE",
    ),
]


@bundled
def generate(
    prompt: PromptArgument = None,
    prompt_file: PromptFile = None,
    *,
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
    """Generate the answer to a prompt.

    The text streams to stdout; notes and statistics go to stderr. With the chat
    template, the final line end of a file or of standard input is left out.
    """
    del quiet  # its check sets runtime.IS_QUIET, which runtime.note reads
    params = replace(
        sampling.params(),
        logprobs=logprobs,
        prediction=prediction_text(prediction),
        trace=record is not None,
    )
    _check_template(chat, needed=system is not None or bool(image))
    _check_output(params, as_json=as_json, answers=n)
    text = prompt_text(prompt, prompt_file)
    early.vision(model, image, trusted=loading.trust_remote_code)
    sampled = {"generation_config": sampling.defaults()}
    llm = open_llm(model, draft, loading, drafting, **sampled)
    ids = read(llm, text, chat, system, image)
    shown = {"colour": render.use_colour(color), "stats": stats}
    params = sampling.fitting(llm, params, ids)
    for seed in seeds(params.seed, n):
        answered = replace(params, seed=seed)
        _write(llm, ids, answered, as_json=as_json, record=record, **shown)


def _check_template(chat: bool | None, *, needed: bool) -> None:
    """Raise InvalidRequest for parts of a chat with '--raw'."""
    if needed and chat is False:
        raise InvalidRequest(
            "cannot use '--system' or '--image' with '--raw': both need the chat "
            "template"
        )


def _check_output(params: "SamplingParams", *, as_json: bool, answers: int) -> None:
    """Raise InvalidRequest for an output that could not be written."""
    if params.logprobs is not None and not as_json:
        raise InvalidRequest(
            "cannot show '--logprobs': they are part of the JSON output. Add '--json'"
        )
    if params.trace and answers > 1:
        raise InvalidRequest(
            "cannot record several answers: '--record' writes one. Leave out '-n'"
        )


def seeds(first: int | None, count: int) -> list[int]:
    """Return the seed of each answer; that of the first is random if None."""
    from foreword.sampling.noise import seed_of

    # short enough to type again
    start = secrets.randbits(32) if first is None else first
    return [seed_of(start, number) for number in range(count)]


def read(
    llm: "LLM",
    text: PromptText,
    chat: bool | None,
    system: str | None,
    images: list[Path] | None = None,
) -> "Rendered":
    """Return the token ids of the prompt, in the chat template or unchanged."""
    if chat is None:
        chat = system is not None or bool(images or llm.tokenizer.chat_template)
    if not chat:
        return llm.tokenizer(text.whole)["input_ids"]
    opening = [{"role": "system", "content": system}] if system is not None else []
    return llm.render([*opening, early.message(text.closed, images)])


def _write(
    llm: "LLM",
    ids: "Rendered",
    params: "SamplingParams",
    *,
    as_json: bool,
    record: Path | None,
    colour: bool,
    stats: bool,
) -> None:
    from foreword.cli.common.session import follow

    if as_json:
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
        writer = render.Writer(colour)
        answer = follow(llm, ids, params, writer)
        writer.end()
        if stats and colour:
            render.notes().print(render.legend())
    if stats:
        runtime.note(render.summary(answer))
    if record is not None:
        from foreword.recording import Recording

        Recording.of(llm, params, answer.completion).write(record)
        runtime.note(f"saved the recording; see it with: foreword view {record}")
    if answer.interrupted:
        raise typer.Exit(130)
