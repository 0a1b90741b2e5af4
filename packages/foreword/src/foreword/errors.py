"""Every error Foreword raises on purpose, one small tree.

    ForewordError
    ├── InvalidRequest      a prompt or a parameter that cannot be served (a ValueError)
    │   └── ContextExceeded      a prompt, with its answer, beyond the model's context
    ├── UnknownMethod       a drafting method or rule that does not exist (a ValueError)
    ├── ModelError          a model that cannot be loaded or run
    │   └── VocabularyMismatch   target and drafter do not share one tokenizer
    └── DiskError           a full disk (also an OSError)

Messages have the form "cannot DO X: REASON. FIX".
"""


class ForewordError(Exception):
    """Base of every error raised on purpose."""


class InvalidRequest(ForewordError, ValueError):
    """A prompt or a parameter that cannot be served; raised before any work starts."""


class ContextExceeded(InvalidRequest):
    """A prompt, alone or with its answer, longer than the model's context."""

    def __init__(
        self, message: str, *, prompt: int, limit: int, answer: int | None = None
    ) -> None:
        """`prompt` and `answer`: tokens, at least; `limit`: tokens of both. Without
        `answer` the prompt alone is too long.
        """
        super().__init__(message)
        self.prompt = prompt
        self.limit = limit
        self.answer = answer

    @property
    def as_anthropic(self) -> str:
        """The message in the words of Anthropic's API, in which its clients look for
        both numbers: they shorten the history and try again.
        """
        if self.answer is None:
            return f"prompt is too long: {self.prompt} tokens > {self.limit} maximum"
        return (
            "input length and `max_tokens` exceed context limit: "
            f"{self.prompt} + {self.answer} > {self.limit}"
        )


class UnknownMethod(ForewordError, ValueError):
    """A drafting method or a verification rule with no such name."""


class ModelError(ForewordError, RuntimeError):
    """A model that cannot be found, loaded or run."""


class VocabularyMismatch(ModelError):
    """Target and drafter share no tokenizer, so token ids mean different things."""


class DiskError(ForewordError, OSError):
    """A disk is full."""


def words(error: BaseException) -> str:
    """Return an error's message in one line, or its class name if it is empty."""
    message = str(error).strip()
    return message.splitlines()[0].rstrip(" .:!") if message else type(error).__name__


def named(error: BaseException) -> str:
    """Return "ClassName: message" of an error."""
    name, message = type(error).__name__, words(error)
    return name if message == name else f"{name}: {message}"


def check_unicode(name: str, text: str) -> str:
    """Return the text. Raises InvalidRequest for a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = text[error.start]
        raise InvalidRequest(
            f"{name} must be valid Unicode, and holds the lone surrogate {surrogate!a}"
        ) from None
    return text
