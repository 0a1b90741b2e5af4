"""Store of past answers per tenant, bounded in size, that can be saved to a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from foreword.draft.lookup.suffix_index import GAP, SuffixIndex
from foreword.errors import InvalidRequest, VocabularyMismatch

CAPACITY = 1 << 20
"""Tokens stored for all tenants together, about 90 bytes each."""
LEAST = 1 << 12
"""Tokens. Initial capacity of a tenant."""
FORMAT, VERSION = "foreword history", "1"
_TENANT = "tenant:"


class AnswerStore:
    """One suffix index per tenant, `capacity` tokens together. Tenants never see each
    other's texts.

    Capacities grow on demand. Beyond the total, the tenant with the largest capacity
    drops its older half, so none crowds out the others. Once all have the least
    capacity, the least recently used tenant is dropped.
    """

    def __init__(self, vocab: int, capacity: int = CAPACITY) -> None:
        """`vocab` is the number of token ids, kept with the file.

        Raises InvalidRequest for too small a capacity.
        """
        if capacity < LEAST:
            raise InvalidRequest(
                f"cannot store {capacity} tokens of past answers. Set capacity to at "
                f"least {LEAST}"
            )
        self.vocab, self.capacity = vocab, capacity
        self._indexes: dict[str, SuffixIndex] = {}

    def __getitem__(self, tenant: str) -> SuffixIndex | None:
        """Return the index of a tenant; None if nothing is stored."""
        return self._indexes.get(tenant)

    def __len__(self) -> int:
        """Return the number of tokens stored for all tenants together."""
        return sum(index.end - index.start for index in self._indexes.values())

    def add(self, tenant: str, tokens: Sequence[int]) -> None:
        """Append a text."""
        if not tokens:
            return
        index = self._indexes.pop(tenant, None) or SuffixIndex(LEAST)
        room = index.capacity
        while room < min(self.capacity, index.end - index.start + len(tokens) + 1):
            room = min(2 * room, self.capacity)
        index = index if room == index.capacity else index.resized(room)
        index.extend([*tokens, GAP])
        self._indexes[tenant] = index  # last: the most recently used
        self._make_room()

    def _make_room(self) -> None:
        indexes = self._indexes
        while sum(index.capacity for index in indexes.values()) > self.capacity:
            most = max(indexes, key=lambda tenant: indexes[tenant].capacity)
            if indexes[most].capacity >= 2 * LEAST:
                indexes[most] = indexes[most].resized(indexes[most].capacity // 2)
            else:
                del indexes[next(iter(indexes))]

    def save(self, path: Path) -> None:
        """Write all texts to one safetensors file, replaced atomically.

        Raises OSError where it cannot be written.
        """
        texts = {
            _TENANT + tenant: torch.tensor(index.tokens(), dtype=torch.int32)
            for tenant, index in self._indexes.items()
        }
        temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            save_file(
                texts,
                temporary,
                {"format": FORMAT, "version": VERSION, "vocab": str(self.vocab)},
            )
            temporary.replace(path)
        except SafetensorError as error:  # raised for a full disk or a missing folder
            raise OSError(str(error)) from error
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(
        cls,
        path: Path,
        vocab: int,
        capacity: int = CAPACITY,
    ) -> AnswerStore:
        """Read a file written by `save`.

        Raises InvalidRequest for a file of another kind, VocabularyMismatch unless it
        is for `vocab` token ids.
        """
        archive = cls(vocab, capacity)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                texts = {
                    key.removeprefix(_TENANT): file.get_tensor(key)
                    for key in file.keys()  # noqa: SIM118
                }
        except (SafetensorError, OSError) as error:
            raise InvalidRequest(
                f"cannot load past answers from {path}: {error}. Choose another file"
            ) from error
        if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
            raise InvalidRequest(
                f"cannot load past answers from {path}: it is not a {FORMAT} of "
                f"version {VERSION}. Choose another file"
            )
        if metadata.get("vocab") != str(vocab):
            raise VocabularyMismatch(
                f"cannot load past answers from {path}: it is for "
                f"{metadata.get('vocab')} tokens, and the target has {vocab}. Keep one "
                "file per tokenizer"
            )
        for tenant, tokens in texts.items():
            archive.add(tenant, tokens[:-1].tolist())  # `add` appends the final gap
        return archive
