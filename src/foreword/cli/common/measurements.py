"""Which options of `foreword bench` go together: each measurement takes its own."""

from __future__ import annotations

from foreword.errors import InvalidRequest

ALONE = {
    "limit": {"context"},
    "rules": {"nodes"},
    "serve": {"concurrency", "requests"},
    "task": {"audio"},
}
"""Options that only one kind of measurement takes."""
LIMITED = {
    "quick",
    "inflate",
    "model",
    "dtype",
    "device",
    "trust_remote_code",
    "json",
    "quiet",
}
"""Other options that --limit takes."""
TEXT_ONLY = {"quick", "inflate", "prompts", "limit_prompts", "plot"}
"""Options that --task asr has no use for."""


def check(given: dict[str, object], defaults: dict[str, object]) -> None:
    """Raise InvalidRequest for options that the chosen measurement would ignore."""
    changed = {name for name, default in defaults.items() if given[name] != default}
    kinds = sorted(changed & {"limit", "rules", "batch", "serve", "where", "task"})
    if len(kinds) > 1:
        raise InvalidRequest(
            f"cannot combine {_as_options(kinds)}: each is its own measurement. Give "
            "one at a time"
        )
    kind = kinds[0] if kinds else ""
    for other, own in ALONE.items():
        if other != kind and (unused := sorted(changed & own)):
            raise InvalidRequest(
                f"cannot use {_as_options(unused)}: it goes with "
                f"{_as_options([other])}. Leave it out, or add that"
            )
    if kind == "limit" and (unused := sorted(changed - LIMITED - ALONE[kind] - {kind})):
        raise InvalidRequest(
            f"cannot use {_as_options(unused)} with '--limit': it measures forwards "
            "alone. Leave it out"
        )
    _check_requests(kind, changed)
    if kind == "task":
        _check_speech(changed)


def _check_requests(kind: str, changed: set[str]) -> None:
    """Raise InvalidRequest for options that many requests at a time would ignore."""
    if kind not in ("", "where", "limit") and "offload_folder" in changed:
        raise InvalidRequest(
            f"cannot use '--offload-folder' with '--{kind}': only single requests are "
            "measured so. Leave it out"
        )
    if kind in ("rules", "serve", "task") and "device" in changed:
        raise InvalidRequest(
            f"cannot use '--device' with '--{kind}': it is measured on the CPU. "
            "Leave it out"
        )
    if {"device", "peers"} <= changed:
        raise InvalidRequest(
            "cannot use '--peers' with '--device': other engines are measured on the "
            "CPU. Leave one out"
        )
    if kind in ("batch", "serve") and "plot" in changed:
        raise InvalidRequest(
            f"cannot use '--plot' with '--{kind}': it draws single requests. Leave it "
            "out"
        )
    if kind == "serve" and (unused := sorted(changed & {"method", "budget", "source"})):
        raise InvalidRequest(
            f"cannot use {_as_options(unused)} with '--serve': servers run by their "
            "defaults. Leave it out"
        )


def _check_speech(changed: set[str]) -> None:
    """Raise InvalidRequest for options of texts, or without a model or sounds."""
    if unused := sorted(changed & TEXT_ONLY):
        raise InvalidRequest(
            f"cannot use {_as_options(unused)} with '--task asr': it reads sounds. "
            "Leave it out"
        )
    for name, example in (
        ("model", "openai/whisper-tiny"),
        ("audio", "a folder of .wav or .flac files"),
    ):
        if name not in changed:
            raise InvalidRequest(
                f"cannot measure speech without '--{name}': it has no default. "
                f"Give {example}"
            )


def _as_options(options: list[str]) -> str:
    return " and ".join(f"'--{name.replace('_', '-')}'" for name in options)
