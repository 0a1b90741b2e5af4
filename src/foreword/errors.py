"""Every error Foreword raises on purpose, one small tree.

    ForewordError
    ├── InvalidRequest      a prompt or a parameter that cannot be served (also a ValueError)
    ├── UnknownMethod       a drafting method or rule that does not exist (also a ValueError)
    ├── ModelError          a model that cannot be loaded or driven
    │   └── VocabularyMismatch   target and drafter do not share one tokenizer
    ├── DraftError          a drafter that failed; the target carries on alone
    └── DiskError           a disk without room for what is to be written (also an OSError)

Each message says what was wrong and what to do next.
"""


class ForewordError(Exception):
    """Base of every error raised on purpose."""


class InvalidRequest(ForewordError, ValueError):
    """A prompt or a parameter that cannot be served; raised before any work starts."""


class UnknownMethod(ForewordError, ValueError):
    """A drafting method or a verification rule with no such name."""


class ModelError(ForewordError, RuntimeError):
    """A model that cannot be found, loaded or driven."""


class VocabularyMismatch(ModelError):
    """Target and drafter do not share one tokenizer, so token ids mean different things."""


class DraftError(ForewordError, RuntimeError):
    """A drafter failed. The engine turns it off and carries on with the target alone."""


class DiskError(ForewordError, OSError):
    """A disk has no room for what is to be written."""


def words(error: BaseException) -> str:
    """What somebody else's error says, in one line, to stand in a sentence of ours; its name where it says nothing."""
    said = str(error).strip()
    return said.splitlines()[0].rstrip(" .:!") if said else type(error).__name__


def named(error: BaseException) -> str:
    """The same after the error's name, where that is needed to make sense of it."""
    name, said = type(error).__name__, words(error)
    return name if said == name else f"{name}: {said}"


def check_unicode(name: str, text: str) -> str:
    """The text. Raises InvalidRequest where it holds half of a pair of surrogates, which no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = text[error.start]
        raise InvalidRequest(f"{name} must be valid Unicode, and holds the lone surrogate {found!a}") from None
    return text
