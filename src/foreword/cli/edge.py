"""Where the program meets the shell: environment, warnings, errors and exit codes.

Knows our errors by name; knows nothing about what the commands do.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from typing import TextIO

import typer

import foreword
from foreword.errors import ForewordError, InvalidRequest, UnknownMethod, named

DEBUG = "FOREWORD_DEBUG"
QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Read by transformers and its companions when they are imported; a user's own settings win."""
COLLECTIONS = (10_000, 50, 100)
"""After how many new objects garbage is looked for, and how many of these searches go over older objects too.

With Python's own numbers all objects are gone over now and then, about a million with transformers among them: a
quarter of a second in the middle of a text, and more than half a second while a command starts.
"""


def run(app: typer.Typer) -> None:
    """Run the app, turn whatever it raises into one line on stderr and an exit code."""
    try:
        _check(sys.argv[1:])
        app(prog_name="foreword")
    except Exception as error:  # the last place that can say it in words
        if _debugging():
            raise
        complain(_in_words(error))
        sys.exit(2 if isinstance(error, InvalidRequest | UnknownMethod) else 1)


def _check(arguments: list[str]) -> None:
    """Raises InvalidRequest for an argument that is no text: a model could read none of it, nor a terminal show it."""
    for number, argument in enumerate(arguments, 1):
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError:
            shown = ascii(argument).strip("'\"")
            raise InvalidRequest(f"cannot read argument {number}: it is not UTF-8 text: {shown}") from None


def prepare(*, debug: bool) -> None:
    """Set up the process before a command runs."""
    gc.set_threshold(*COLLECTIONS)
    if debug:
        os.environ[DEBUG] = "1"
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            as_it_is = {"errors": "strict", "newline": ""}  # line ends too
            reconfigure(encoding="utf-8", **(as_it_is if stream is sys.stdin else {"errors": "replace"}))
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", module=r"(torch|transformers|huggingface_hub|tokenizers)\b")
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
    warnings.showwarning = _warn


def stdin() -> TextIO:
    """Standard input. Raises InvalidRequest where it is closed."""
    if sys.stdin is None:
        raise InvalidRequest("cannot read standard input: it is closed. Open it, or give the text as an argument")
    return sys.stdin


def version(wanted: bool) -> None:
    """Say the version and stop."""
    if wanted:
        typer.echo(f"foreword {foreword.__version__}")
        raise typer.Exit


def complain(message: str) -> None:
    """One line of trouble on stderr."""
    _line("error", "bold red", message)


def note(message: str) -> None:
    """One line of information on stderr."""
    from foreword.cli.show import stderr

    stderr().print(message, style="dim", markup=False, highlight=False, soft_wrap=True)


def _line(kind: str, style: str, message: str) -> None:
    from rich.text import Text

    from foreword.cli.show import stderr

    text = Text.assemble((f"{kind}: ", style), (" ".join(message.split()), "red" if kind == "error" else ""))
    stderr().print(text, soft_wrap=True, highlight=False)


def _warn(message: Warning | str, *_: object) -> None:
    """Stands in for `warnings.showwarning`: no file, no line of code."""
    _line("warning", "bold yellow", str(message))


def _in_words(error: Exception) -> str:
    if isinstance(error, ForewordError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{named(error)}. Run `foreword --debug …` to see where it came from"


def _debugging() -> bool:
    return os.environ.get(DEBUG, "0") not in ("", "0")
