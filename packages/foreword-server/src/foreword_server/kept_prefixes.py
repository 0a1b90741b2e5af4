"""Pages of texts on disk: written when a server ends, read when it starts, so that an
agent's long prompt is read once, not once a start.
"""

import json
from array import array
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.files import atomic_file, check_creatable, room
from foreword.model.kv.prefixes import PAGE, Prefix
from foreword.model.model import Model


class PrefixFile:
    """The file of a model's pages in a folder.

    The name holds all that their bits depend on: the files of the checkpoint, the forms
    of weights and keys, this package and the processor.
    """

    def __init__(self, model: Model, folder: Path) -> None:
        """Raises InvalidRequest where the pages of a model cannot be used again."""
        from foreword.model.executors.native.rows import Rows
        from foreword.model.loading import verdicts

        pool = model.backend.pool
        verdict = verdicts.cached(model.name, model.hf.config, model.dtype)
        checkpoint = verdict and verdict.file
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
        check_creatable(folder)

    def write(self) -> int:
        """Write the pages of texts that ended, and return their tokens."""
        from safetensors.torch import save_file

        numbers = dict[int, int]()
        pages = dict[str, Tensor]()
        records = list[dict[str, object]]()
        for number, prefix in enumerate(self._pool.prefixes.kept()):
            numbers[id(prefix)] = number
            pages[str(number)] = self._pool.page(prefix.page)
            record = {
                "tokens": array("i", prefix.tokens).tolist(),
                "after": numbers.get(id(prefix.parent), -1),
                "tenant": _tenant(prefix).decode(),
            }
            records.append(record)
        about = {"prefixes": json.dumps(records)}
        with room(self.path), atomic_file(self.path) as begun:
            save_file(pages, begun, about)
            begun.chmod(0o600)
        return PAGE * len(records)

    def read(self) -> int:
        """Take up the pages in the file and return their tokens, 0 without a file.

        Beyond the limit of the pool the oldest are left out.
        """
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return 0
        try:
            with safe_open(self.path, "pt") as file:
                about = file.metadata()["prefixes"]
                records = json.loads(about)
                names = map(str, range(len(records)))
                pages = map(file.get_tensor, names)
                return PAGE * self._take_up(records, pages)
        except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
            raise InvalidRequest(
                f"cannot read the prefixes in {self.path}: {error}. Delete the file"
            ) from error

    def _take_up(
        self,
        records: list[dict[str, Any]],
        pages: Iterator[Tensor],
    ) -> int:
        """Put pages into the tree, up to the limit; return how many."""
        tree = self._pool.prefixes
        prefixes = list[Prefix]()
        for record, page in zip(records, pages, strict=False):
            if self._pool.is_full:
                break
            key = array("i", record["tokens"]).tobytes()
            if record["after"] < 0:
                parent = tree.root(record["tenant"])
            else:
                parent = prefixes[record["after"]]
            number = self._pool.reserve()
            self._pool.page(number).copy_(page)
            prefix = tree.take_up(parent, key, number)
            prefixes.append(prefix)
        tree.let_go(prefixes)
        return len(prefixes)


def _tenant(prefix: Prefix) -> bytes:
    while prefix.parent is not None:
        prefix = prefix.parent
    return prefix.tokens
