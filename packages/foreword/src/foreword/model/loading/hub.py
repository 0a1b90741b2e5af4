"""Finds the files of a checkpoint: in a folder, in the cache of the hub, or on the hub,
which is tried once; says what kind of model a config names.

Without a network, the hub's client repeats every request for half a minute, and loading
sends several.
"""

import json
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import Any

from huggingface_hub import constants, get_session
from transformers.utils.hub import cached_file, cached_files

from foreword.errors import ModelError, words
from foreword.files import part_names, part_paths
from foreword.registry import HEAD_KEYS

CONFIG, GGUF = "config.json", ".gguf"
TIMEOUT = 2.0
"""Seconds. Longest wait for the hub's first answer; it usually takes a tenth."""
FRESH = 60.0
"""Seconds for which an answer is cached: a load of a model, draft and tokenizers."""
MASK_TOKENS = ("pard_token", "ptd_token_id")
"""Config keys with the id of the mask token of a draft model that predicts several
tokens in one forward, as vLLM reads them.
"""


def location(source: str | Path) -> dict[str, Any]:
    """Return the arguments that tell transformers where a checkpoint is. Raises
    ModelError as `gguf` and `local_only`.

    A source is a folder, a hub id, or a GGUF file: its path, or "repo/id:name.gguf".
    """
    path = gguf(source)
    if path is None:
        return {
            "pretrained_model_name_or_path": source,
            "local_files_only": local_only(source),
        }
    return {
        "pretrained_model_name_or_path": path.parent,
        "gguf_file": path.name,
        "local_files_only": True,
    }


def gguf(source: str | Path) -> Path | None:
    """Return the path of a GGUF file, downloaded if need be; None for any other source.

    A model in several parts may be named by each; the path is that of the first part,
    and the others lie beside it. Raises ModelError if one is not found.
    """
    path, (repo, _, name) = Path(source).expanduser(), str(source).rpartition(":")
    if not str(source).lower().endswith(GGUF) or path.is_dir():
        return None
    if path.is_file():
        return _with_parts(source, part_paths(path)[0])
    first_path, reason = None, "no such file exists"
    if repo and not lost(source):
        first = part_names(name)[0]
        try:
            first_path = cached_file(
                repo, first, local_files_only=local_only(repo, first), **_SILENT
            )
            reason = f"{repo} has no file {first}"
        except OSError as error:
            reason = words(error)
    if first_path is None:
        raise ModelError(
            f"cannot load {str(source)!r}: {reason}. Give the path of a GGUF file, or "
            "repo/id:name.gguf"
        )
    return _with_parts(source, Path(first_path), repo, part_names(name))


def _with_parts(
    source: str | Path, first: Path, repo: str = "", names: Sequence[str] = ()
) -> Path:
    """Return the first part of a GGUF model once all parts lie beside it; `names` in
    `repo` are downloaded side by side if need be.

    Raises ModelError if one is not found.
    """
    lacking = _lacking(first)
    reason = f"{first.parent} lacks"
    if lacking and repo:
        reason = f"{repo} lacks, or has not sent,"
        parts = [name for name in names if Path(name).name in lacking]
        try:
            local = local_only(repo, names[0])
            cached_files(repo, parts, local_files_only=local, **_SILENT)
        except OSError as error:
            reason = f"{words(error)}; {reason}"
        lacking = _lacking(first)
    if lacking:
        raise ModelError(
            f"cannot load {str(source)!r}: {reason} {', '.join(lacking)}. Download all "
            "parts of the model"
        )
    return first


def _lacking(first: Path) -> list[str]:
    return [part.name for part in part_paths(first) if not part.is_file()]


def local_only(source: str | Path, name: str = CONFIG) -> bool:
    """Return whether to look for a checkpoint on this machine only: it is a folder, or
    the hub does not answer.

    Raises ModelError for a hub id whose file `name` is not cached while the hub does
    not answer.
    """
    if lost(source) or Path(source).expanduser().is_dir():
        return True
    if reachable():
        return False
    if cached_file(str(source), name, local_files_only=True, **_SILENT) is None:
        raise ModelError(
            f"cannot load {str(source)!r}: no such folder exists, it is not in the "
            f"cache of this machine, and {constants.ENDPOINT} does not answer. Give a "
            f"folder that holds {name}, or try again with a network"
        )
    return True


def reachable() -> bool:
    """Return whether the hub answers; an answer counts for FRESH seconds."""
    return _answers(int(time.monotonic() / FRESH))


def file(source: str | Path, name: str, *, fetch: bool = True) -> Path:
    """Return the path of a file of a checkpoint; the path does not exist where the
    checkpoint lacks the file.

    A GGUF file has none beside it. Unless `fetch`, a file that is not cached yet counts
    as lacking. Raises OSError, or ModelError as `local_only` does.
    """
    if (path := gguf(source)) is not None:
        return path / name
    folder = Path(source).expanduser()
    if folder.is_dir() or lost(source):
        return folder / name
    local = not fetch or local_only(source)
    silent = {} if fetch else _SILENT
    return Path(
        cached_file(str(source), name, local_files_only=local, **silent) or name
    )


def files(source: str | Path, names: list[str]) -> list[Path]:
    """Return the paths of files of a checkpoint, downloaded side by side; empty where
    the hub lacks one.

    Raises OSError, or ModelError as `local_only` does.
    """
    folder = Path(source).expanduser()
    if folder.is_dir() or lost(source):
        return [folder / name for name in names]
    paths = cached_files(
        str(source), names, local_files_only=local_only(source), **_SILENT
    )
    return [Path(path) for path in paths or ()]


def lost(source: str | Path) -> bool:
    """Return whether this path does not exist: the hub would call it an invalid id."""
    return (
        str(source).startswith(("/", ".", "~"))
        and not Path(source).expanduser().exists()
    )


_SILENT: dict[str, Any] = {
    "_raise_exceptions_for_missing_entries": False,
    "_raise_exceptions_for_connection_errors": False,
}


@lru_cache(maxsize=1)
def _answers(moment: int) -> bool:
    """Return whether the hub answers; `moment` changes when an answer expires."""
    del moment
    answers: list[int] = []

    def request() -> None:
        try:
            answers.append(
                get_session().head(constants.ENDPOINT, timeout=TIMEOUT).status_code
            )
        except Exception:  # noqa: BLE001 - whatever the client raises, there was no answer
            answers.clear()

    # a name look-up has no timeout of its own
    thread = Thread(target=request, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    return bool(answers)


def config_of(source: str | Path) -> dict[str, Any]:
    """Return a folder's config; empty where none is readable."""
    try:
        config = json.loads(file(source, CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, ModelError):
        return {}
    return config if isinstance(config, dict) else {}


def kinds_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of model that a config names: the one of speculators, its
    architectures, then keys that only trained heads have (`HEAD_KEYS`).
    """
    architectures = config.get("architectures")
    named = (
        config.get("speculators_model_type"),
        *(architectures if isinstance(architectures, list) else ()),
        *(key for key in HEAD_KEYS if config.get(key) is not None),
    )
    return tuple(one for one in named if isinstance(one, str))


def kinds(source: str | Path) -> tuple[str, ...]:
    """Return the kinds of model that a folder's config names, then the key of its mask
    token, if any; empty without a readable config.
    """
    config = config_of(source)
    masks = (key for key in MASK_TOKENS if config.get(key) is not None)
    return (*kinds_of(config), *masks)
