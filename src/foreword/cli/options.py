"""The options that several commands share, each said once. Knows names and help texts; imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

MODEL, SAMPLING, GUESSING, OUTPUT = "Model", "Sampling", "Guessing", "Output"

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


def examples(*lines: str) -> str:
    """An epilog that shows how a command is used."""
    return "\n".join(["[bold]Examples[/bold]", *(f"  [cyan]$[/cyan] {line}" for line in lines)])


def _option(panel: str, names: str, help: str, metavar: str | None = None) -> typer.models.OptionInfo:
    return typer.Option(*names.split(), help=help, metavar=metavar, rich_help_panel=panel)


ModelName = Annotated[
    str | None, _option(MODEL, "--model -m", "Folder or hub id of the target. Default: the family that ships.", "MODEL")
]
DraftName = Annotated[
    str | None, _option(MODEL, "--draft -d", "Folder or hub id of a smaller model that guesses.", "MODEL")
]
DtypeName = Annotated[
    Dtype, _option(MODEL, "--dtype", "auto, float32, bfloat16 or float16; auto: bfloat16 where it is fast.", "DTYPE")
]
Device = Annotated[str, _option(MODEL, "--device", "auto, cpu, cuda, cuda:1 …", "DEVICE")]
Way = Annotated[
    str | None,
    _option(
        MODEL, "--way", "Drive the target this way: native, graph, pool, cache or plain. Default: the best.", "WAY"
    ),
]

MethodName = Annotated[
    str | None, _option(GUESSING, "--method", "How to guess; `foreword methods` lists the ways. none: plain.", "NAME")
]
RuleName = Annotated[
    str,
    _option(
        GUESSING,
        "--rule",
        "How guesses are judged, or what is kept: same-text (match, the default) or same-distribution.",
        "NAME",
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
    ),
]
Learn = Annotated[
    Path | None,
    _option(
        GUESSING, "--learn", "Let the draft model learn from what is said; a new folder gets it in the end.", "DIR"
    ),
]
Nodes = Annotated[int | None, _option(GUESSING, "--nodes -n", "Instead of --width: guesses in every round.", "N")]

Temperature = Annotated[float, _option(SAMPLING, "--temperature -t", "0 takes the likeliest token.", "T")]
TopP = Annotated[float, _option(SAMPLING, "--top-p", "Keep the likeliest tokens that together reach this.", "P")]
TopK = Annotated[int, _option(SAMPLING, "--top-k", "Keep the k likeliest tokens; 0 keeps all.", "K")]
MinP = Annotated[float, _option(SAMPLING, "--min-p", "Drop tokens below this share of the likeliest.", "P")]
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
