"""Options that several commands share: help, metavar and check. Nothing heavy."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from foreword.cli.common import early, runtime
from foreword.options import DraftingOptions, ModelOptions

MODEL = "Model"
SAMPLING = "Sampling"
FORM = "Form of the answer"
DRAFTING = "Drafting"
OUTPUT = "Output"

SHAPES = Literal["family", "llama-110m", "llama-350m", "llama-1b", "llama-8b"]
OPTIMIZERS = Literal["adamw", "muon"]
"""Names that the library checks again; tests/cli/test_early.py compares both."""
MAX_TOKENS = 256
"""Tokens. Default limit of an answer; lowered to what the context can hold."""


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


def option(
    panel: str | None,
    names: str,
    help: str,
    metavar: str | None = None,
    check: Callable[[Any], object] | None = None,
    *,
    least: float | None = None,
) -> typer.models.OptionInfo:
    """Return an option of one of the panels of `--help`."""
    callback = checked(check) if check else None
    return typer.Option(
        *names.split(),
        help=help,
        min=least,
        metavar=metavar,
        rich_help_panel=panel,
        callback=callback,
    )


def declared(kind: type[Any], name: str) -> Any:
    """Return the option of a setting that foreword.options declares."""
    (setting,) = [one for one in fields(kind) if one.name == name]
    described = setting.metadata["described"]
    value: Any = described.kind
    if described.choices:
        value = Literal[described.choices]
    if setting.default is None:
        value = value | None
    names = f"--{name.replace('_', '-')} {described.also}"
    check = CHECKS.get(name)
    return Annotated[
        value, option(kind.panel, names, described.help, described.metavar, check)
    ]


CHECKS: dict[str, Callable[[Any], object]] = {
    "method": early.method,
    "budget": early.budget,
    "device": early.device,
}
"""Checks of settings in the words of the command line, before heavy imports."""

if TYPE_CHECKING:
    DtypeName = str
    Device = str
    TrustRemoteCode = bool
    WeightsName = str | None
    OffloadFolder = Path | None
    MethodName = str | None
else:
    DtypeName = declared(ModelOptions, "dtype")
    Device = declared(ModelOptions, "device")
    TrustRemoteCode = declared(ModelOptions, "trust_remote_code")
    WeightsName = declared(ModelOptions, "weights")
    OffloadFolder = declared(ModelOptions, "offload_folder")
    MethodName = declared(DraftingOptions, "method")

ModelName = Annotated[
    str | None,
    option(
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
    option(
        MODEL,
        "--draft -d",
        "Draft model or head: folder, hub id, GGUF file, or auto.",
        "MODEL",
        check=early.model,
    ),
]

Temperature = Annotated[
    float,
    option(
        SAMPLING,
        "--temperature -t",
        "Sampling temperature; 0 takes the likeliest token.",
        "T",
        check=early.temperature,
    ),
]
OptionalTemperature = Annotated[
    float | None,
    option(
        SAMPLING,
        "--temperature -t",
        "Sampling temperature; 0 takes the likeliest token. Default: the model's, or "
        "1.",
        "T",
    ),
]
TopP = Annotated[
    float | None,
    option(
        SAMPLING,
        "--top-p",
        "Probability mass kept, likeliest tokens first. Default: the model's.",
        "P",
    ),
]
TopK = Annotated[
    int | None,
    option(
        SAMPLING,
        "--top-k",
        "Number of likeliest tokens kept; 0 keeps all. Default: the model's.",
        "K",
    ),
]
MinP = Annotated[
    float | None,
    option(
        SAMPLING,
        "--min-p",
        "Minimum probability, relative to the likeliest token. Default: the model's.",
        "P",
    ),
]
TypicalP = Annotated[
    float | None,
    option(
        SAMPLING,
        "--typical-p",
        "Probability mass kept, tokens closest to entropy first. Default: the model's.",
        "P",
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    option(
        SAMPLING,
        "--repetition-penalty",
        "Logit divisor for tokens in prompt or answer. Default: the model's.",
        "X",
    ),
]
PresencePenalty = Annotated[
    float | None,
    option(
        SAMPLING, "--presence-penalty", "Logit reduction for tokens in the answer.", "X"
    ),
]
FrequencyPenalty = Annotated[
    float | None,
    option(
        SAMPLING,
        "--frequency-penalty",
        "Logit reduction per occurrence in the answer.",
        "X",
    ),
]
GenerationConfig = Annotated[
    Literal["auto", "none"],
    option(
        SAMPLING,
        "--generation-config",
        "Default sampling: auto: the model's own; none: temperature 1, all tokens.",
    ),
]
LogitBias = Annotated[
    list[str] | None,
    option(
        SAMPLING, "--logit-bias", "Logit bias of a token id. Repeatable.", "ID=VALUE"
    ),
]
BadWord = Annotated[
    list[str] | None,
    option(SAMPLING, "--bad-word", "Text that is never generated. Repeatable.", "TEXT"),
]
MinTokens = Annotated[
    int, option(SAMPLING, "--min-tokens", "Minimum number of new tokens.", "N")
]
IgnoreEos = Annotated[
    bool, option(SAMPLING, "--ignore-eos", "No stop at the end-of-text token.")
]
Language = Annotated[
    str,
    option(
        SAMPLING,
        "--language",
        "Language of an encoder-decoder's answer, such as fra_Latn.",
        "CODE",
    ),
]
Tenant = Annotated[
    str,
    option(DRAFTING, "--tenant", "Group of requests that share past answers.", "NAME"),
]
MaxTokens = Annotated[
    int | None,
    option(
        SAMPLING,
        "--max-tokens",
        "Maximum number of new tokens. Default: 256, or what fits.",
        "N",
    ),
]
Seed = Annotated[
    int | None,
    option(
        SAMPLING,
        "--seed",
        "Sampling seed; same seed, same text. Default: random, reported.",
        "N",
    ),
]
Stop = Annotated[
    list[str] | None,
    option(
        SAMPLING, "--stop", "Text that ends the answer, excluded. Repeatable.", "TEXT"
    ),
]

JsonSchema = Annotated[
    str | None,
    option(
        FORM,
        "--json-schema",
        "JSON that follows a schema: a file, or JSON text.",
        "FILE|JSON",
    ),
]
JsonObject = Annotated[bool, option(FORM, "--json-object", "Any JSON object.")]
Regex = Annotated[
    str | None,
    option(FORM, "--regex", "Text that matches a regular expression.", "TEXT"),
]
Grammar = Annotated[
    Path | None,
    option(FORM, "--grammar", "Text that follows a grammar: a file in EBNF.", "FILE"),
]

System = Annotated[
    str | None,
    option(MODEL, "--system -s", "System message before the conversation.", "TEXT"),
]
Images = Annotated[
    list[Path] | None,
    option(
        MODEL,
        "--image",
        "File of an image before the text. May be repeated.",
        "FILE",
        check=early.images,
    ),
]
Colour = Annotated[
    bool | None,
    option(
        OUTPUT,
        "--color/--no-color",
        "Colours for accepted draft tokens. Default: on a terminal.",
    ),
]
Statistics = Annotated[
    bool,
    option(
        OUTPUT, "--stats/--no-stats", "One line about speed and acceptance, on stderr."
    ),
]
Quiet = Annotated[
    bool,
    option(
        OUTPUT,
        "--quiet",
        "No progress and no notes on stderr.",
        check=runtime.IS_QUIET.set,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
SERVER = "Server"
Key = Annotated[str | None, option(SERVER, "--key", "API key of the server.", "KEY")]
MostTokens = Annotated[
    int,
    option(
        None, "--max-tokens", "Maximum number of new tokens per answer.", "N", least=1
    ),
]
