"""Texts that a command is given: the prompt as an argument, a file or standard input,
and the prediction.
"""

from dataclasses import dataclass
from pathlib import Path

from foreword.cli.common import early, runtime
from foreword.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt as given, and without the final line end of a file."""

    whole: str
    closed: str


def prompt_text(argument: str | None, file: Path | None) -> PromptText:
    """Return the one prompt given, in UTF-8 and not empty, or raise InvalidRequest."""
    text = _given(argument, file)
    if not text.whole.strip():
        raise InvalidRequest("cannot answer: the prompt is empty. Give some text")
    return text


def _given(argument: str | None, file: Path | None) -> PromptText:
    """Return the argument, or what a file or standard input holds."""
    if argument is not None and file is not None:
        raise InvalidRequest(
            "cannot read two prompts: an argument and '--prompt-file' are given. Give "
            "one, not both"
        )
    if argument is not None and argument != "-":
        return PromptText(argument, argument)
    if file is not None:
        text = decoded(file.read_bytes(), "the prompt")
    else:
        stdin = runtime.stdin()
        if argument is None and stdin.isatty():
            raise InvalidRequest(
                "cannot generate: the prompt is missing. Give one: "
                'foreword generate "…", or - for standard input'
            )
        try:
            text = stdin.read()
        except UnicodeDecodeError as error:
            raise _not_text("the prompt", error) from error
    closed = text.removesuffix("\n")
    return PromptText(text, closed.removesuffix("\r") if closed != text else text)


def decoded(content: bytes, what: str) -> str:
    """Return the text of a file. Raises InvalidRequest if it is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_text(what, error) from error


def _not_text(what: str, error: UnicodeDecodeError) -> InvalidRequest:
    return InvalidRequest(
        f"cannot read {what}: it is not UTF-8 text: {error.reason} at byte "
        f"{error.start}. Give UTF-8 text"
    )


def prediction_text(value: str) -> str:
    """Return the text of a prediction, read from a file if it is @FILE."""
    if not value.startswith("@"):
        return value
    early.there(value[1:])
    return decoded(Path(value[1:]).read_bytes(), "the prediction")
