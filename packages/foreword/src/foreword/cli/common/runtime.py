"""Process setup and the shell interface: environment, warnings, errors, exit codes."""

import atexit
import gc
import os
import sys
import warnings
from contextvars import ContextVar
from typing import TextIO

import typer

import foreword
from foreword.errors import ForewordError, InvalidRequest, UnknownMethod, named

DEBUG = "FOREWORD_DEBUG"
LIBRARY_SETTINGS = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment variables that transformers, huggingface_hub and tokenizers read on
import; a user's settings win.
"""
IS_QUIET: ContextVar[bool] = ContextVar("quietly", default=False)
"""Whether the command has --quiet."""
GC_THRESHOLDS = (10_000, 50, 100)
"""Thresholds of gc: new objects per collection, then collections of one generation per
collection of the next.

With Python's defaults, a full collection visits about a million objects once
transformers is imported. It takes a quarter of a second in the middle of a text, and
more than half a second while a command starts.
"""


def run(app: typer.Typer) -> None:
    """Run the app; turn an exception into one line on stderr and an exit code."""
    try:
        _check(sys.argv[1:])
        app(prog_name="foreword")
    except Exception as error:  # the last place that can report it
        if _debugging():
            raise
        print_error(_message(error))
        sys.exit(2 if isinstance(error, InvalidRequest | UnknownMethod) else 1)


def _check(arguments: list[str]) -> None:
    """Raise InvalidRequest for an argument that is not UTF-8: no tokenizer can read it
    and no terminal can show it.
    """
    for number, argument in enumerate(arguments, 1):
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError:
            shown = ascii(argument).strip("'\"")
            raise InvalidRequest(
                f"cannot read argument {number}: it is not UTF-8 text: {shown}. Give "
                "UTF-8 text"
            ) from None


def prepare(*, debug: bool) -> None:
    """Set up the process before a command runs."""
    IS_QUIET.set(False)
    gc.set_threshold(*GC_THRESHOLDS)
    # else Python searches a million objects for garbage before it exits: 0.7 s
    atexit.register(gc.freeze)
    if debug:
        os.environ[DEBUG] = "1"
    for name, value in LIBRARY_SETTINGS.items():
        os.environ.setdefault(name, value)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            unchanged = {"errors": "strict", "newline": ""}  # keeps line ends too
            reconfigure(
                encoding="utf-8",
                **(unchanged if stream is sys.stdin else {"errors": "replace"}),
            )
    if not sys.warnoptions:
        warnings.filterwarnings(
            "ignore", module=r"(torch|transformers|huggingface_hub|tokenizers)\b"
        )
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
    warnings.showwarning = _warn


def stdin() -> TextIO:
    """Return standard input. Raises InvalidRequest if it is closed."""
    if sys.stdin is None:
        raise InvalidRequest(
            "cannot read standard input: it is closed. Open it, or give the text as an "
            "argument"
        )
    return sys.stdin


def version(requested: bool) -> None:
    """Print the version and exit."""
    if requested:
        typer.echo(f"foreword {foreword.__version__}")
        raise typer.Exit


def print_error(message: str) -> None:
    """Print one line about an error on stderr."""
    _line("error", "bold red", message)


def print_warning(message: str) -> None:
    """Print one line about what the command can do without, on stderr."""
    _line("warning", "bold yellow", message)


def note(message: str) -> None:
    """Print one line of information on stderr; nothing with --quiet."""
    from foreword.cli.common.render import notes, printable

    notes().print(
        printable(message), style="dim", markup=False, highlight=False, soft_wrap=True
    )


def _line(kind: str, style: str, message: str) -> None:
    from rich.text import Text

    from foreword.cli.common.render import printable, stderr

    shown = printable(" ".join(message.split()))  # it may quote a file
    text = Text.assemble(
        (f"{kind}: ", style), (shown, "red" if kind == "error" else "")
    )
    stderr().print(text, soft_wrap=True, highlight=False)


def _warn(message: Warning | str, *_: object) -> None:
    """Replace `warnings.showwarning`: print no file and no line of code."""
    print_warning(str(message))


def _message(error: Exception) -> str:
    if isinstance(error, ForewordError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return (
            f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        )
    return f"{named(error)}. Run `foreword --debug …` for the traceback"


def _debugging() -> bool:
    return os.environ.get(DEBUG, "0") not in ("", "0")
