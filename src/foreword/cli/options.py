"""The options that several commands share, each said once, with its check. Knows help texts; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from foreword.cli import early

MODEL, SAMPLING, GUESSING, OUTPUT = "Model", "Sampling", "Guessing", "Output"

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
WAYS = Literal["native", "graph", "pool", "cache", "plain"]
SHAPES = Literal["family", "llama-110m", "llama-350m", "llama-1b", "llama-8b"]
OPTIMIZERS = Literal["adamw", "muon"]
"""Names that the library checks again; tests/cli/test_early.py says that they are the same."""
MAX_TOKENS = 256
"""Tokens of an answer when nobody says how long it may be; fewer where the context is nearly full."""


def examples(*lines: str) -> str:
    """An epilog that shows how a command is used."""
    return "\n".join(["[bold]Examples[/bold]", *(f"  [cyan]$[/cyan] {line}" for line in lines)])


def checked(check: Callable[[Any], None]) -> Callable[[Any], Any]:
    """A callback of an option that lets its value pass, or raises what the check raises."""

    def callback(value: Any) -> Any:
        check(value)
        return value

    return callback


def _option(
    panel: str, names: str, help: str, metavar: str | None = None, check: Callable[[Any], None] | None = None
) -> typer.models.OptionInfo:
    callback = checked(check) if check else None
    return typer.Option(*names.split(), help=help, metavar=metavar, rich_help_panel=panel, callback=callback)


ModelName = Annotated[
    str | None,
    _option(
        MODEL,
        "--model -m",
        "Folder or hub id of the target. Default: the family that ships.",
        "MODEL",
        check=early.model,
    ),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(help="Folder or hub id. Default: the family that ships.", callback=checked(early.model)),
]
DraftName = Annotated[
    str | None,
    _option(MODEL, "--draft -d", "Folder or hub id of a smaller model that guesses.", "MODEL", check=early.model),
]
DtypeName = Annotated[
    Dtype, _option(MODEL, "--dtype", "auto, float32, bfloat16 or float16; auto: bfloat16 where it is fast.", "DTYPE")
]
Device = Annotated[str, _option(MODEL, "--device", "auto, cpu, cuda, cuda:1 …", "DEVICE", check=early.device)]
Way = Annotated[
    WAYS | None,
    _option(
        MODEL, "--way", "Drive the target this way: native, graph, pool, cache or plain. Default: the best.", "WAY"
    ),
]

Trust = Annotated[bool, _option(MODEL, "--trust-remote-code", "Run code that the model's folder or repository holds.")]

MethodName = Annotated[
    str | None,
    _option(
        GUESSING,
        "--method",
        "How to guess; `foreword methods` lists the ways. none: plain.",
        "NAME",
        check=early.method,
    ),
]
RuleName = Annotated[
    str,
    _option(
        GUESSING,
        "--rule",
        "How guesses are judged, or what is kept: same-text (match, the default) or same-distribution.",
        "NAME",
        check=early.rule,
    ),
]
WidthName = Annotated[
    str | None,
    _option(
        GUESSING,
        "--width",
        "How much to guess: measured (the default; none while guesses lose), heuristic, confidence, svip, adaedl, "
        "acceptance:DIR.",
        "NAME",
        check=early.width,
    ),
]
Learn = Annotated[
    Path | None,
    _option(
        GUESSING,
        "--learn",
        "Let the draft model learn from what is said; a new folder gets it in the end.",
        "DIR",
        check=early.new,
    ),
]
Nodes = Annotated[
    int | None, _option(GUESSING, "--nodes", "Instead of --width: guesses in every round.", "N", check=early.nodes)
]

Temperature = Annotated[
    float, _option(SAMPLING, "--temperature -t", "0 takes the likeliest token.", "T", check=early.temperature)
]
TopP = Annotated[float, _option(SAMPLING, "--top-p", "Keep the likeliest tokens that together reach this.", "P")]
TopK = Annotated[int, _option(SAMPLING, "--top-k", "Keep the k likeliest tokens; 0 keeps all.", "K")]
MinP = Annotated[float, _option(SAMPLING, "--min-p", "Drop tokens below this share of the likeliest.", "P")]
TypicalP = Annotated[
    float, _option(SAMPLING, "--typical-p", "Keep this mass of the tokens closest to the entropy.", "P")
]
RepetitionPenalty = Annotated[
    float, _option(SAMPLING, "--repetition-penalty", "Divide logits of tokens in prompt or answer by this.", "X")
]
PresencePenalty = Annotated[
    float, _option(SAMPLING, "--presence-penalty", "Subtract this from logits of tokens in the answer.", "X")
]
FrequencyPenalty = Annotated[
    float, _option(SAMPLING, "--frequency-penalty", "The same, for each time that they are there.", "X")
]
LogitBias = Annotated[
    list[str] | None, _option(SAMPLING, "--logit-bias", "Add to the logit of a token id. Repeatable.", "ID=VALUE")
]
BadWord = Annotated[list[str] | None, _option(SAMPLING, "--bad-word", "Never write this. Repeatable.", "TEXT")]
MinTokens = Annotated[int, _option(SAMPLING, "--min-tokens", "Do not end before this many new tokens.", "N")]
IgnoreEos = Annotated[bool, _option(SAMPLING, "--ignore-eos", "Go on after the end-of-text token.")]
Tenant = Annotated[str, _option(GUESSING, "--tenant", "Share past answers with requests of this name only.", "NAME")]
MaxTokens = Annotated[
    int | None, _option(SAMPLING, "--max-tokens", "At most this many new tokens. Default: 256, or what fits.", "N")
]
Seed = Annotated[
    int | None, _option(SAMPLING, "--seed", "Same seed, same text. Default: a random one, which is reported.", "N")
]
Stop = Annotated[list[str] | None, _option(SAMPLING, "--stop", "End before this text. May be given again.", "TEXT")]

System = Annotated[str | None, _option(MODEL, "--system -s", "What the model is told before the conversation.", "TEXT")]
Colour = Annotated[
    bool | None, _option(OUTPUT, "--color/--no-color", "Show where tokens came from. Default: on a terminal.")
]
Statistics = Annotated[bool, _option(OUTPUT, "--stats/--no-stats", "One line about speed and guesses, on stderr.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
