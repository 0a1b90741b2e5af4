"""Pages of texts on disk: written when a server ends, read when it starts, so that an
agent's long prompt is read once, not once a start.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from foreword.errors import InvalidRequest
from foreword.files import atomic_file
from foreword.model.kv.prefixes import PAGE, Prefix

if TYPE_CHECKING:
    from torch import Tensor

    from foreword.model.executors.native.rows import Rows
    from foreword.model.model import Model


class PrefixFile:
    """The file of a model's pages in a folder.

    The name holds all that their bits depend on: the files of the checkpoint, the forms
    of weights and keys, this package and the processor.
    """

    def __init__(self, model: Model, folder: Path) -> None:
        """Raises InvalidRequest where the pages of a model cannot be used again."""
        from foreword.model.executors.native.rows import Rows
        from foreword.model.loading.verdicts import verdict_file

        pool = model.backend.pool
        checkpoint = verdict_file(model.name, model.hf.config, model.dtype)
        if not isinstance(pool, Rows) or pool.prefixes.recurrent or checkpoint is None:
            raise InvalidRequest(
                f"cannot keep prefixes of {model.name} on disk: only pages of the "
                "backend 'native' can be kept, of a checkpoint of 8 MB or more without "
                "recurrent layers. Leave '--prefix-folder' out"
            )
        about = [checkpoint.stem, model.forms, str(pool.row_bytes)]
        key = sha256(json.dumps(about).encode()).hexdigest()
        self._pool: Rows = pool
        self.path = folder / f"{key[:16]}.safetensors"

    def write(self) -> int:
        """Write the pages of texts that ended, and return their tokens."""
        from safetensors.torch import save_file

        prefixes = list(self._pool.prefixes.kept())
        numbers = {id(prefix): number for number, prefix in enumerate(prefixes)}
        about = [
            {
                "tokens": array("i", prefix.tokens).tolist(),
                "after": numbers.get(id(prefix.parent), -1),
                "tenant": _tenant(prefix).decode(),
            }
            for prefix in prefixes
        ]
        pages = {
            str(number): self._pool.page(prefix.page)
            for number, prefix in enumerate(prefixes)
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(self.path) as begun:
            save_file(pages, begun, {"prefixes": json.dumps(about)})
        self.path.chmod(0o600)
        return PAGE * len(prefixes)

    def read(self) -> int:
        """Take up the pages in the file, the newest as far as the limit of the pool
        goes, and return their tokens; 0 where there is no file.
        """
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return 0
        try:
            with safe_open(self.path, "pt") as file:
                about = json.loads(file.metadata()["prefixes"])
                pages = (file.get_tensor(str(number)) for number in range(len(about)))
                return PAGE * self._take_up(about, pages)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(
                f"cannot read the prefixes in {self.path}: {error}. Delete the file"
            ) from error

    def _take_up(self, about: list[dict[str, object]], pages: Iterator[Tensor]) -> int:
        tree = self._pool.prefixes
        prefixes = list[Prefix]()
        for record, page in zip(about, pages, strict=True):
            if self._pool.is_full:
                break
            after = int(str(record["after"]))
            tokens = array("i", record["tokens"]).tobytes()  # type: ignore[arg-type]
            parent = tree.root(str(record["tenant"])) if after < 0 else prefixes[after]
            number = self._pool.reserve()
            self._pool.page(number).copy_(page)
            prefixes.append(tree.take_up(parent, tokens, number))
        tree.let_go(prefixes)
        return len(prefixes)


def _tenant(prefix: Prefix) -> bytes:
    while prefix.parent is not None:
        prefix = prefix.parent
    return prefix.tokens
