"""Checks of a command's options before torch is imported, which takes seconds: names,
devices, files.

Names come from foreword.registry, so nothing heavy is imported.
"""

import math
import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foreword.entries import Registry
from foreword.errors import InvalidRequest, ModelError, words
from foreword.files import check_creatable, check_writable
from foreword.method_name import parsed
from foreword.prompts import file_of
from foreword.registry import BUDGETS

STDOUT = Path("-")
"""File that stands for stdout, where JSON goes instead of a table."""
DEVICES = ("auto", "cpu", "cuda", "mps", "xpu", "hpu", "npu", "mtia", "xla")
"""Kinds of devices that torch supports; whether one is here is checked at its use."""


def each(check: Callable[[Any], object]) -> Callable[[Iterable[Any] | None], None]:
    """Return the check of an option that may be repeated."""

    def every(values: Iterable[Any] | None) -> None:
        for value in values or ():
            check(value)

    return every


def check_choice(kind: str, name: str, choices: Iterable[str]) -> None:
    """Raise UnknownMethod, with the nearest name, unless the name is a choice."""
    Registry(kind, "", "", dict.fromkeys(choices, "")).check(name)


def method(name: str | None) -> None:
    """Check a drafting method, or a combination of methods written like a call."""
    if name is not None:
        parsed(name)


def budget(name: str | None) -> None:
    """Check a budget, given as NAME or NAME:PATH."""
    if name is not None:
        kind, _, folder = name.partition(":")
        BUDGETS.check(kind)
        there(folder or None)


def device(name: str) -> None:
    """Check a device in the spelling of torch."""
    if not re.fullmatch(rf"(?:{'|'.join(DEVICES)})(?::\d+)?", name):
        raise InvalidRequest(
            f"cannot use '--device' {name!r}: no such device exists. Give auto, cpu, "
            "cuda, or a number: cuda:1"
        )


def there(*places: str | Path | None) -> None:
    """Check that files or folders exist."""
    for path in places:
        if path is not None and not Path(path).expanduser().exists():
            raise InvalidRequest(
                f"cannot read {path}: no such file or folder exists. Give one that "
                "exists"
            )


def model(source: str | None) -> None:
    """Check a folder or a hub id. A name that can only be a folder must exist."""
    if (
        source is not None
        and source.startswith(("/", ".", "~"))
        and not Path(source).expanduser().exists()
    ):
        raise ModelError(
            f"cannot load a model from {source!r}: no such folder or file exists. "
            "Give one, or a hub id"
        )


def either(argument: str | None, option: str | None, name: str) -> str | None:
    """Return the model of an argument or the option `name`. InvalidRequest for both."""
    if argument is not None and option is not None:
        raise InvalidRequest(
            f"cannot use both {argument!r} and '{name}' {option!r}: they name the same "
            "model. Give one"
        )
    return argument if option is None else option


def data(files: Iterable[Path] | None) -> None:
    """Check files of records."""
    for file in files or ():
        if not file.is_file():
            raise InvalidRequest(
                f"cannot read {file}: no such file exists. Give JSON lines, each a "
                "record"
            )


def images(files: Iterable[Path] | None) -> None:
    """Check files of images."""
    for file in files or ():
        if not file.expanduser().is_file():
            raise InvalidRequest(
                f"cannot read the image {file}: no such file exists. Give the path "
                "of an image"
            )


def vision(
    source: str | None, files: Iterable[Path] | None, *, trusted: bool = False
) -> None:
    """Raise InvalidRequest for images before a model that reads text only; its weights
    are not loaded.
    """
    if not files:
        return
    from foreword import bundled
    from foreword.model.vision.processor import check_vision

    check_vision(
        bundled.target() if source is None else source, trust_remote_code=trusted
    )


def message(text: str, images: Iterable[Path] | None) -> dict[str, object]:
    """Return a user's message, with its images before its text."""
    parts = [{"type": "image", "image": str(file)} for file in images or ()]
    return {
        "role": "user",
        "content": [*parts, {"type": "text", "text": text}] if parts else text,
    }


def prompts(kind: str) -> None:
    """Check the name of a prompt set, or a file of prompts."""
    if (path := file_of(kind)) is not None:
        data([path])
    else:
        check_choice("prompt set", kind, ("in-domain", "out-of-domain"))


def new(path: Path | None) -> None:
    """Check a folder that can be created and does not exist yet."""
    if path is not None and path.exists():
        raise InvalidRequest(
            f"cannot create {path}: it exists already. Remove it or name another folder"
        )
    if path is not None:
        check_creatable(path)


def file(path: Path | None) -> None:
    """Check a file that can be written."""
    if path is not None:
        check_writable(path)


def output(path: Path | None) -> None:
    """Check an output file, or stdout, before minutes are spent."""
    if path != STDOUT:
        file(path)


def json_text(value: str | None) -> str | None:
    """Return the JSON of an option: text that begins with a brace, or a file's name."""
    return (
        value if value is None or value.lstrip().startswith("{") else text(Path(value))
    )


def text(path: Path | None) -> str | None:
    """Return the text of a file. Raises InvalidRequest unless it is UTF-8."""
    if path is None:
        return None
    there(path)
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise InvalidRequest(
            f"cannot read {path}: {words(error)}. Give a file of UTF-8 text"
        ) from error


def temperature(value: float) -> None:
    """Check a temperature in the same way as a request."""
    from foreword.types.params import SamplingParams

    SamplingParams(temperature=value)


def of_server(url: str | None, key: str | None, pair: object, verb: str) -> None:
    """Check the address and the key of a server, beside options of a pair."""
    if url is None:
        if key:
            raise InvalidRequest(
                "cannot use '--key': it is the key of a server. Give '--url'"
            )
        return
    if pair:
        raise InvalidRequest(f"cannot {verb}")
    address(url)


def extra(name: str, *modules: str) -> None:
    """Check that the modules of an extra are installed."""
    missing = [module for module in modules if not _installed(module)]
    if missing:
        raise InvalidRequest(
            f"cannot run this command: {', '.join(missing)} is not installed. Run: pip "
            f"install 'foreword[{name}]'"
        )


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # what it is a part of
        return False


def address(url: str) -> None:
    """Check the address of a server."""
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(
            f"cannot reach {url!r}: it is not an address. Begin it with http://"
        )


def numbers(option: str, value: str) -> list[int]:
    """Return the numbers of a list such as 1,4,16,32.

    Raises InvalidRequest, which names the option or argument, for others.
    """
    try:
        return [int(part) for part in value.split(",")]
    except ValueError as error:
        raise InvalidRequest(
            f"cannot read {option} {value!r}: it holds no list of numbers. Give "
            "one as 1,4,16,32"
        ) from error


def ratios(option: str, value: str) -> list[float]:
    """Return one or two positive numbers, as of 0.98 or 0.98,0.95.

    Raises InvalidRequest, which names the option, for others.
    """
    try:
        values = [float(part) for part in value.split(",")]
    except ValueError:
        values = []
    if len(values) not in (1, 2) or not all(0 < one < math.inf for one in values):
        raise InvalidRequest(
            f"cannot read {option} {value!r}: it holds neither one positive number nor "
            "two. Give 0.98 or 0.98,0.95"
        )
    return values
