"""Options that several commands share: help, metavar and check.

Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from foreword.cli.common import early, runtime

MODEL = "Model"
SAMPLING = "Sampling"
FORM = "Form of the answer"
DRAFTING = "Drafting"
OUTPUT = "Output"

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KV = Literal["int8"]
WEIGHTS = Literal["int8", "int4"]
BACKENDS = Literal["native", "graph", "pool", "cache", "plain"]
SHAPES = Literal[
    "family", "llama-110m", "llama-350m", "llama-1b", "llama-8b", "t5-350m"
]
OPTIMIZERS = Literal["adamw", "muon"]
"""Names that the library checks again; tests/cli/test_early.py compares the
two lists.
"""
MAX_TOKENS = 256
"""Tokens.

Default length limit of an answer; lowered to what the context can still hold.
"""


def examples(*lines: str) -> str:
    """Return an epilog with usage examples."""
    return "\n".join(
        ["[bold]Examples[/bold]", *(f"  [cyan]$[/cyan] {line}" for line in lines)]
    )


def checked(check: Callable[[Any], object]) -> Callable[[Any], Any]:
    """Return an option callback that runs the check and returns the value unchanged."""

    def callback(value: Any) -> Any:
        check(value)
        return value

    return callback


def _option(
    panel: str,
    names: str,
    help: str,
    metavar: str | None = None,
    check: Callable[[Any], object] | None = None,
) -> typer.models.OptionInfo:
    callback = checked(check) if check else None
    return typer.Option(
        *names.split(),
        help=help,
        metavar=metavar,
        rich_help_panel=panel,
        callback=callback,
    )


ModelName = Annotated[
    str | None,
    _option(
        MODEL,
        "--model -m",
        "Target model: folder, hub id or GGUF file. Default: bundled.",
        "MODEL",
        check=early.model,
    ),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(
        help="Target model: folder, hub id or GGUF file. Default: bundled.",
        callback=checked(early.model),
    ),
]
DraftName = Annotated[
    str | None,
    _option(
        MODEL,
        "--draft -d",
        "Draft model or head: folder, hub id or GGUF file.",
        "MODEL",
        check=early.model,
    ),
]
DtypeName = Annotated[
    Dtype,
    _option(
        MODEL,
        "--dtype",
        "float32, bfloat16, float16 or auto (bfloat16 where fast).",
        "DTYPE",
    ),
]
Device = Annotated[
    str,
    _option(
        MODEL,
        "--device",
        "Device: auto, cpu, cuda, cuda:1 …",
        "DEVICE",
        check=early.device,
    ),
]
BackendName = Annotated[
    BACKENDS | None,
    _option(
        MODEL,
        "--backend",
        "Backend: native, graph, pool, cache or plain. Default: the best supported.",
        "BACKEND",
    ),
]

WeightsName = Annotated[
    WEIGHTS | None,
    _option(
        MODEL,
        "--weights",
        "int8 or int4: form of linear weights (backend native). Default: the dtype.",
        "FORM",
    ),
]
KvName = Annotated[
    KV | None,
    _option(
        MODEL,
        "--kv",
        "int8: keys and values in 8 bits (backend native). Default: the dtype.",
        "FORM",
    ),
]
OffloadFolder = Annotated[
    Path | None,
    _option(
        MODEL,
        "--offload-folder",
        "Folder for packed weights; those that do not fit in memory are read from it "
        "in every forward.",
        "DIR",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    _option(
        MODEL, "--trust-remote-code", "Permission to run code from the model's folder."
    ),
]

MethodName = Annotated[
    str | None,
    _option(
        DRAFTING,
        "--method",
        "Drafting method, see `foreword methods`; none: plain decoding. Default: by "
        "--draft.",
        "NAME",
        check=early.method,
    ),
]
RuleName = Annotated[
    str,
    _option(
        DRAFTING,
        "--rule",
        "Verification rule, or guarantee: same-text or same-distribution.",
        "NAME",
        check=early.rule,
    ),
]
BudgetName = Annotated[
    str | None,
    _option(
        DRAFTING,
        "--budget",
        "Draft-token budget: adaptive, heuristic, confidence, svip, adaedl, "
        "acceptance:DIR. Default: adaptive.",
        "NAME",
        check=early.budget,
    ),
]
Learn = Annotated[
    Path | None,
    _option(
        DRAFTING,
        "--learn",
        "New folder for the draft model, trained online.",
        "DIR",
        check=early.new,
    ),
]
Nodes = Annotated[
    int | None,
    _option(
        DRAFTING,
        "--nodes",
        "Fixed draft tokens per round; replaces --budget.",
        "N",
        check=early.nodes,
    ),
]

Temperature = Annotated[
    float,
    _option(
        SAMPLING,
        "--temperature -t",
        "Sampling temperature; 0 takes the likeliest token.",
        "T",
        check=early.temperature,
    ),
]
TopP = Annotated[
    float,
    _option(SAMPLING, "--top-p", "Probability mass kept, likeliest tokens first.", "P"),
]
TopK = Annotated[
    int,
    _option(SAMPLING, "--top-k", "Number of likeliest tokens kept; 0 keeps all.", "K"),
]
MinP = Annotated[
    float,
    _option(
        SAMPLING,
        "--min-p",
        "Minimum probability, relative to the likeliest token.",
        "P",
    ),
]
TypicalP = Annotated[
    float,
    _option(
        SAMPLING,
        "--typical-p",
        "Probability mass kept, tokens closest to entropy first.",
        "P",
    ),
]
RepetitionPenalty = Annotated[
    float,
    _option(
        SAMPLING,
        "--repetition-penalty",
        "Logit divisor for tokens in prompt or answer.",
        "X",
    ),
]
PresencePenalty = Annotated[
    float,
    _option(
        SAMPLING, "--presence-penalty", "Logit reduction for tokens in the answer.", "X"
    ),
]
FrequencyPenalty = Annotated[
    float,
    _option(
        SAMPLING,
        "--frequency-penalty",
        "Logit reduction per occurrence in the answer.",
        "X",
    ),
]
LogitBias = Annotated[
    list[str] | None,
    _option(
        SAMPLING, "--logit-bias", "Logit bias of a token id. Repeatable.", "ID=VALUE"
    ),
]
BadWord = Annotated[
    list[str] | None,
    _option(
        SAMPLING, "--bad-word", "Text that is never generated. Repeatable.", "TEXT"
    ),
]
MinTokens = Annotated[
    int, _option(SAMPLING, "--min-tokens", "Minimum number of new tokens.", "N")
]
IgnoreEos = Annotated[
    bool, _option(SAMPLING, "--ignore-eos", "No stop at the end-of-text token.")
]
Language = Annotated[
    str,
    _option(
        SAMPLING,
        "--language",
        "Language of an encoder-decoder's answer, such as fra_Latn.",
        "CODE",
    ),
]
Tenant = Annotated[
    str,
    _option(DRAFTING, "--tenant", "Group of requests that share past answers.", "NAME"),
]
MaxTokens = Annotated[
    int | None,
    _option(
        SAMPLING,
        "--max-tokens",
        "Maximum number of new tokens. Default: 256, or what fits.",
        "N",
    ),
]
Seed = Annotated[
    int | None,
    _option(
        SAMPLING,
        "--seed",
        "Sampling seed; same seed, same text. Default: random, reported.",
        "N",
    ),
]
Stop = Annotated[
    list[str] | None,
    _option(
        SAMPLING, "--stop", "Text that ends the answer, excluded. Repeatable.", "TEXT"
    ),
]

JsonSchema = Annotated[
    str | None,
    _option(
        FORM,
        "--json-schema",
        "JSON that follows a schema: a file, or JSON text.",
        "FILE|JSON",
    ),
]
JsonObject = Annotated[bool, _option(FORM, "--json-object", "Any JSON object.")]
Regex = Annotated[
    str | None,
    _option(FORM, "--regex", "Text that matches a regular expression.", "TEXT"),
]
Grammar = Annotated[
    Path | None,
    _option(FORM, "--grammar", "Text that follows a grammar: a file in EBNF.", "FILE"),
]

System = Annotated[
    str | None,
    _option(MODEL, "--system -s", "System message before the conversation.", "TEXT"),
]
Images = Annotated[
    list[Path] | None,
    _option(
        MODEL,
        "--image",
        "File of an image before the text. May be repeated.",
        "FILE",
        check=early.images,
    ),
]
Colour = Annotated[
    bool | None,
    _option(
        OUTPUT,
        "--color/--no-color",
        "Colours for accepted draft tokens. Default: on a terminal.",
    ),
]
Statistics = Annotated[
    bool,
    _option(
        OUTPUT, "--stats/--no-stats", "One line about speed and acceptance, on stderr."
    ),
]
Quiet = Annotated[
    bool,
    _option(
        OUTPUT,
        "--quiet",
        "No progress and no notes on stderr.",
        check=runtime.IS_QUIET.set,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
