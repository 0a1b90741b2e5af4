"""Finds a published drafter for a target, for `draft="auto"`: in the cache of the hub,
or among the models that the hub lists. Downloads nothing but a card.
"""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants
from huggingface_hub.repocard import metadata_load

from foreword import bundled
from foreword.errors import words
from foreword.model.loading import hub
from foreword.notices import notify
from foreword.registry import AUTO, HEAD_FILES, OTHER_HEADS

TAG = "foreword"
"""Tag of the drafters that `foreword push` publishes."""
CARD = "README.md"
WEIGHTS = ".safetensors"
LISTED = 5
"""Models of a target that are tried, the most downloaded first."""
KNOWN: dict[str, str] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)
"""Target -> a drafter of others, in a form that a method reads."""


Match = tuple[Path | None, str, str]
"""A drafter's folder in the cache, if it is there; its name, empty without a drafter;
and its name and size, or the reason why there is none.
"""


def draft_for(target: object) -> Path | None:
    """Return the drafter that "auto" means: a folder of this name, the bundled one for
    the bundled target (None without a target), else one in the cache of the hub. If
    there is none, warn, with what to do.
    """
    if Path(AUTO).exists():
        return Path(AUTO)
    if target is None:
        return None
    if isinstance(target, str | Path) and bundled.is_target(target):
        return bundled.draft()
    folder, name, about = find(target)
    if folder is not None:
        notify(f"drafting with {name}, from the cache of the hub")
        return folder
    text = f"cannot use a published drafter: {about}. Name one"
    if name:
        text = f'found {about}; pass draft="{name}" to download it'
    warnings.warn(f"{text}. Lookups draft meanwhile", stacklevel=4)
    return None


def find(target: object) -> Match:
    """Return a drafter for the target, one in the cache first."""
    path = str(getattr(target, "name_or_path", target))
    name = path.partition(":")[0]
    is_id = name.count("/") == 1 and not hub.lost(name)
    if not is_id or Path(name).expanduser().exists():
        return None, "", f"{name!r} is not a hub id"
    known = [KNOWN[name]] if name in KNOWN else []
    for drafter in (*_cached_for(name), *known):
        folder = _folder(drafter)
        if folder is not None:
            return folder, drafter, drafter
    host = constants.ENDPOINT
    if not hub.reachable():
        reason = f"{host} does not answer"
        return None, "", f"the cache holds none, and {reason}"
    try:
        return _on_hub(name, known)
    except Exception as error:  # noqa: BLE001 - whatever the hub's client raises
        return None, "", f"{host} does not list any: {words(error)}"


def _on_hub(target: str, known: list[str]) -> Match:
    """Return a drafter that the hub lists for a target, or is known; one in the cache
    first.
    """
    api = HfApi()
    tags = [f"base_model:{target}", TAG]
    listed = api.list_models(filter=tags, sort="downloads", limit=LISTED)
    names = [*(model.id for model in listed), *known]
    for name in names:
        folder = _folder(name)
        if folder is not None:
            # so that it is found without a network, too
            hub.file(name, CARD)
            return folder, name, name
    if not names:
        return None, "", f"{constants.ENDPOINT} lists none for {target}"
    info = api.model_info(names[0], files_metadata=True)
    files = info.siblings or ()
    weights = [file for file in files if file.rfilename.endswith(WEIGHTS)]
    size = sum(file.size or 0 for file in weights or files)
    return None, names[0], f"{names[0]} ({size / 1e6:,.0f} MB)"


def _cached_for(target: str) -> Iterator[str]:
    """Yield the drafters for a target whose cards are in the cache."""
    cache = Path(constants.HF_HUB_CACHE)
    for card in sorted(cache.glob(f"models--*--*/snapshots/*/{CARD}")):
        if _is_for(card, target):
            repo = card.parents[2].name
            yield repo.removeprefix("models--").replace("--", "/")


def _is_for(card: Path, target: str) -> bool:
    """Return whether a card is that of a drafter for the target."""
    try:
        values: dict[str, Any] = metadata_load(card) or {}
    except Exception:  # noqa: BLE001 - a stranger's file, and YAML's errors
        return False
    bases, tags = values.get("base_model"), values.get("tags")
    is_ours = isinstance(tags, list) and TAG in tags
    return is_ours and target in (bases if isinstance(bases, list) else [bases])


def _folder(name: str) -> Path | None:
    """Return the folder of a drafter in the cache, None if some of it is not there or
    no method runs it.
    """
    config = hub.file(name, hub.CONFIG, fetch=False)
    folder = config.parent
    if not config.is_file() or set(hub.kinds(folder)) & set(OTHER_HEADS):
        return None
    return folder if has_weights(folder) else None


def has_weights(folder: Path) -> bool:
    """Return whether a folder holds weights, all shards if there are several."""
    for index in folder.glob("*.index.json"):
        values = json.loads(index.read_text(encoding="utf-8"))
        shards = values["weight_map"].values()
        return all((folder / shard).is_file() for shard in shards)
    names = (f"model{WEIGHTS}", "pytorch_model.bin", *HEAD_FILES)
    return any((folder / name).is_file() for name in names)
