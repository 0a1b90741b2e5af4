"""Publishes a drafter on the hub of Hugging Face: its files, and a card that names its
target, so that `draft="auto"` finds it.

A function, not a method of `Drafter`: a folder is published, and nothing is loaded.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import (
    CommitOperationAdd,
    HfApi,
    ModelCard,
    ModelCardData,
    constants,
    get_token,
)

from foreword.draft import default_method
from foreword.draft.published import CARD, TAG, has_weights
from foreword.errors import InvalidRequest, ModelError, words
from foreword.model.loading import hub
from foreword.model.loading.config import read_config
from foreword.registry import DEFAULT_WITH_DRAFT, EARLY_EXIT
from foreword_train.report.card import FOLDER, card
from foreword_train.report.metrics import TrainReport

REPORT = "report.json"
PICTURE = "acceptance.png"
LOADED = ".bin .json .jinja .model .pt .safetensors .txt".split()
"""Endings of the files that loading reads; others stay, such as logs."""
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SHARED = {"base_model_relation": "adapter", "library_name": TAG}
"""Values of every card; the hub calls weights beside a base model an adapter."""
TAGS = ["speculative-decoding", TAG]
MENTIONS = ("`{}`", '"{}"', "- target: {}\n", "--model {}`")
"""Forms in which the card of a training names its target."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Files and card of a drafter, complete and checked, before anything is sent."""

    repo: str
    folder: Path
    method: str
    target: str
    card: str
    paths: list[Path]

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every file by its name."""
        sizes = {path.name: path.stat().st_size for path in self.paths}
        return {CARD: len(self.card.encode()), **sizes}

    def send(self, *, private: bool = False) -> str:
        """Create the repository if need be, send all files in one commit, and return
        its address. The folder does not change.

        A `private` one must be new: an older one may be public. Raises ModelError with
        the reason.
        """
        _check_reachable(self.folder)
        files = [CommitOperationAdd(path.name, path) for path in self.paths]
        files.append(CommitOperationAdd(CARD, self.card.encode()))
        api = HfApi()
        try:
            url = api.create_repo(self.repo, private=private, exist_ok=not private)
            api.create_commit(self.repo, files, commit_message="Upload a drafter")
        except Exception as error:
            raise ModelError(
                f"cannot push {self.folder}: {constants.ENDPOINT} says: {words(error)}."
                f" Check that your token may write to {self.repo}, and that a private "
                "one is new; then try again"
            ) from error
        return str(url)


def push(
    folder: str | Path,
    repo: str,
    target: str | None = None,
    *,
    private: bool = False,
) -> str:
    """Publish the drafter in a folder as `repo`, and return its address.

    Raises as `prepare` and `Upload.send` do.
    """
    return prepare(folder, repo, target).send(private=private)


def prepare(folder: str | Path, repo: str, target: str | None = None) -> Upload:
    """Return what `push` would send. `target`: the target's hub id; default: that of
    the card or of the training's report.

    Raises InvalidRequest for a wrong name, or a folder without a drafter, a card or a
    target on the hub; ModelError for a drafter that no method runs.
    """
    folder = Path(folder).expanduser()
    method = _method(folder)
    report = _report(folder)
    text = _text(folder, report)
    if report is not None and target is not None:
        for form in MENTIONS:
            text = text.replace(form.format(report.target), form.format(target))
    shown = ModelCard(text.replace(FOLDER, repo), ignore_metadata_errors=True)
    values: dict[str, Any] = SHARED | shown.data.to_dict()
    named = target or values.get("base_model") or (report and report.target)
    values["base_model"] = named
    values["tags"] = [*dict.fromkeys([*values.get("tags", ()), *TAGS, method])]
    shown.data = ModelCardData(**values)
    base = named[0] if isinstance(named, list) and named else named
    if not _is_id(repo):
        raise _refused(folder, f"{repo!r} is not a hub id. Give one such as ORG/NAME")
    if not _is_id(base):
        reason = f"{base!r} is not a hub id" if base else "it names no target"
        raise _refused(folder, f"{reason}. Give '--base-model' ORG/NAME")
    paths = [path for path in sorted(folder.iterdir()) if _is_sent(path)]
    return Upload(repo, folder, method, str(base), str(shown), paths)


def _refused(folder: Path, reason: str) -> InvalidRequest:
    return InvalidRequest(f"cannot push {folder}: {reason}")


def _is_sent(path: Path) -> bool:
    if path.name in (REPORT, CARD) or not path.is_file():
        return False
    return path.suffix in LOADED or path.name == PICTURE


def _is_id(name: object) -> bool:
    """Return whether a name can be a hub id, and is not a path."""
    if not isinstance(name, str) or Path(name).exists():
        return False
    return HUB_ID.fullmatch(name) is not None


def _check_reachable(folder: Path) -> None:
    """Raise ModelError where nothing can be sent."""
    if constants.HF_HUB_OFFLINE:
        reason = "offline mode is on. Unset HF_HUB_OFFLINE"
    elif get_token() is None:
        reason = "this machine has no token. Run: hf auth login"
    elif not hub.reachable():
        reason = f"{constants.ENDPOINT} does not answer. Try again later"
    else:
        return
    raise ModelError(f"cannot push {folder}: {reason}")


def _method(folder: Path) -> str:
    """Return the method of a draft's config. Raises InvalidRequest for a folder without
    config or weights, ModelError for a drafter that no method runs.
    """
    if not hub.config_of(folder) or not has_weights(folder):
        fix = "Give the folder of a drafter"
        raise _refused(folder, f"it lacks {hub.CONFIG} or weights. {fix}")
    method = default_method(folder)
    if method == DEFAULT_WITH_DRAFT:
        read_config(folder)
    return method


def _report(folder: Path) -> TrainReport | None:
    """Return the report of the training that made the folder, if any. Raises
    InvalidRequest for a trained target.
    """
    path = folder / REPORT
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        report = TrainReport.from_json(values)
    except (OSError, ValueError, TypeError, KeyError):
        return None  # there is none, or another program's
    if report.settings.get("method") == EARLY_EXIT:
        reason = "it is a target that drafts itself. Run: hf upload"
        raise _refused(folder, reason)
    return report


def _text(folder: Path, report: TrainReport | None) -> str:
    """Return the folder's card, written anew if a training made the folder."""
    path = folder / CARD
    if path.is_file():
        text = path.read_text(encoding="utf-8")
    elif report is not None:
        has_picture = (folder / PICTURE).is_file()
        text = card(report, PICTURE if has_picture else None)
    else:
        reason = f"it has no {CARD}. Describe its data and licence there"
        raise _refused(folder, reason)
    # else the hub's client would warn
    return text if text.startswith("---") else f"---\ntags: []\n---\n\n{text}"
