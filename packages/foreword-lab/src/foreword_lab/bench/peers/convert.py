"""The models of other engines: GGUF files as they are, other Llamas converted; and the
cache on disk of converted models, keyed by a digest of their content.
"""

from collections.abc import Callable
from pathlib import Path

from foreword.errors import InvalidRequest
from foreword.files import atomic_folder, cache
from foreword_train.gguf.source import Source

INT8, INT4 = "int8", "int4"
"""Forms of quantized weights, as in `foreword.LLM(weights=)`."""
FORMS = {INT8: "Q8_0", INT4: "Q4_0"}
"""Form -> type of every matrix for other engines, embedding and LM head included."""
FILE = "model.gguf"
SAMPLE = "def f(x):  return 12345 * x  # naïve, 日本語 🙂\n\nIt's 1,234.5"
"""Text that tokenizers split differently: spaces, digits, marks and bytes."""
WRITERS = 4
"""Version of the writers; increase it when their output for the same weights changes,
so that old files are ignored.
"""


def converted(
    kind: str, what: Source, write: Callable[[Path], None], note: Callable[[str], None]
) -> Path:
    """Return the folder that holds `what` in the format `kind`; if there is none,
    `write` fills an empty one.

    `kind` names the type of the weights too, if it is not their dtype. A folder appears
    only when it is complete, so a killed run leaves no partial one.
    """
    path = folder() / f"{kind}-{WRITERS}-{what.digest()[:20]}"
    if path.is_dir():
        return path
    note(f"writing {what.name} for {kind} into {path}, to be reused by later runs")
    try:
        with atomic_folder(path) as begun:
            write(begun)
    except InvalidRequest:
        if not path.is_dir():  # else another run wrote it first
            raise
    return path


def folder() -> Path:
    """Return the cache: `peers` of Foreword's; it may be deleted at any time."""
    return cache() / "peers"


def note_vocabulary(
    engine: str,
    what: Source,
    size: int,
    tokenize: Callable[[str], list[int]],
    note: Callable[[str], None],
) -> None:
    """Note where an engine has another number of tokens, or splits text otherwise."""
    rows = what.model.config.get_text_config().vocab_size
    if size != rows:
        note(f"{engine} has {size} tokens of {what.name}, Foreword {rows}")
    ids = what.tokenizer(SAMPLE, add_special_tokens=False)["input_ids"]
    if tokenize(SAMPLE) != ids:
        note(
            f"{engine} tokenizes text of {what.name} otherwise than Foreword; it is "
            "measured on the token ids of Foreword"
        )
