"""What past texts said, apart for each tenant: bounded, the oldest forgotten first, kept on disk where asked.

Knows token ids and files; knows nothing about sequences or guesses.
"""

from __future__ import annotations

import os
from collections.abc import Sequence as List
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from foreword.draft.history import GAP, History
from foreword.errors import InvalidRequest, VocabularyMismatch

CAPACITY = 1 << 20
"""Tokens remembered, all tenants together; about 90 bytes each."""
LEAST = 1 << 12
"""Room that a tenant starts with."""
FORMAT, VERSION = "foreword history", "1"
_TENANT = "tenant:"


class Archive:
    """A history for each tenant, `capacity` tokens together. No tenant ever sees what another one's texts said.

    Room grows with what is remembered. When it runs out the tenant with the most room gives up the older half, so that
    none can crowd out the others; when all have the least there is, the one that was silent longest is forgotten.
    """

    def __init__(self, vocab: int, capacity: int = CAPACITY) -> None:
        """`vocab` is the number of token ids, kept with the file. Raises InvalidRequest for too small a capacity."""
        if capacity < LEAST:
            raise InvalidRequest(f"capacity must be at least {LEAST} tokens, got {capacity}")
        self.vocab, self.capacity = vocab, capacity
        self._histories: dict[str, History] = {}

    def __getitem__(self, tenant: str) -> History | None:
        """What is remembered for a tenant; None when nothing is."""
        return self._histories.get(tenant)

    def __len__(self) -> int:
        """Tokens remembered, all tenants together."""
        return sum(history.end - history.start for history in self._histories.values())

    def add(self, tenant: str, tokens: List[int]) -> None:
        """Remember a text."""
        if not tokens:
            return
        history = self._histories.pop(tenant, None) or History(LEAST)
        room = history.capacity
        while room < min(self.capacity, history.end - history.start + len(tokens) + 1):
            room = min(2 * room, self.capacity)
        history = history if room == history.capacity else history.resized(room)
        history.extend([*tokens, GAP])
        self._histories[tenant] = history  # last: the one heard of most recently
        self._make_room()

    def _make_room(self) -> None:
        histories = self._histories
        while sum(history.capacity for history in histories.values()) > self.capacity:
            most = max(histories, key=lambda tenant: histories[tenant].capacity)
            if histories[most].capacity >= 2 * LEAST:
                histories[most] = histories[most].resized(histories[most].capacity // 2)
            else:
                del histories[next(iter(histories))]

    def save(self, path: Path) -> None:
        """Write everything to one safetensors file; whoever reads the path meanwhile finds the old file or the new.

        Raises OSError where it cannot be written.
        """
        texts = {
            _TENANT + tenant: torch.tensor(history.tokens(), dtype=torch.int32)
            for tenant, history in self._histories.items()
        }
        fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            save_file(texts, fresh, {"format": FORMAT, "version": VERSION, "vocab": str(self.vocab)})
            fresh.replace(path)
        except SafetensorError as error:  # its own name for a full disk or a folder that is gone
            raise OSError(str(error)) from error
        finally:
            fresh.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path, vocab: int, capacity: int = CAPACITY) -> Archive:
        """Read what `save` wrote.

        Raises InvalidRequest where the file holds something else, VocabularyMismatch where it was written for another
        number of token ids than `vocab`.
        """
        archive = cls(vocab, capacity)
        try:
            with safe_open(path, framework="pt") as file:
                said = file.metadata() or {}
                texts = {key.removeprefix(_TENANT): file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise InvalidRequest(f"{path} cannot be read as a saved history: {error}; name another file") from error
        if (said.get("format"), said.get("version")) != (FORMAT, VERSION):
            raise InvalidRequest(f"{path} is no saved history of version {VERSION}; name another file, or a new one")
        if said.get("vocab") != str(vocab):
            raise VocabularyMismatch(
                f"{path} remembers texts of a model with {said.get('vocab')} tokens, and the target has {vocab}; "
                "keep one file for each tokenizer"
            )
        for tenant, tokens in texts.items():
            archive.add(tenant, tokens[:-1].tolist())  # the gap at its end comes by itself
        return archive
