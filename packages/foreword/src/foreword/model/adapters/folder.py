"""Reads the folder of a LoRA adapter, as PEFT saves it: its settings, and the two
matrices of each layer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from jaxtyping import Float32
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from foreword.errors import InvalidRequest, words
from foreword.model.adapters.settings import LoraSettings, read_settings, refusal

WEIGHTS = "adapter_model.safetensors"
NAME = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<part>[AB])\.weight")
"""Name of a matrix: its layer in the model, and which of the two it is."""
ADAPTER = re.compile(r"\w[\w./@-]*")
"""Names of adapters: a server's clients write NAME:METHOD."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The matrices of one linear layer: it adds scale * up @ (down @ x)."""

    down: Float32[Tensor, "rank inputs"]
    up: Float32[Tensor, "outputs rank"]
    scale: float


@dataclass(frozen=True, slots=True)
class LoraFolder:
    """An adapter as its folder describes it, not yet fitted to a model."""

    path: Path
    settings: LoraSettings
    pairs: Mapping[str, Pair]
    """By the name of the layer in the model."""

    @property
    def key(self) -> str:
        """What its pairs compute: adapters of one key have equal keys and values."""
        digest = sha256()
        for layer, pair in sorted(self.pairs.items()):
            digest.update(f"{layer} {pair.scale} {len(pair.down)} ".encode())
            digest.update(pair.down.numpy().tobytes())
            digest.update(pair.up.numpy().tobytes())
        return digest.hexdigest()[:16]


Folders = Mapping[str, LoraFolder]
"""Adapters by name."""


def read_adapters(folders: Mapping[str, str | Path]) -> Folders:
    """Return the adapters of these folders, by name.

    Raises InvalidRequest for a name that cannot be used, ModelError for a folder.
    """
    for name in folders:
        if not ADAPTER.fullmatch(name):
            raise InvalidRequest(
                f"cannot name an adapter {name!r}: a name is letters, digits and any "
                "of _ - . / @. Choose another"
            )
    return {name: read_folder(Path(folder)) for name, folder in folders.items()}


def read_folder(path: Path) -> LoraFolder:
    """Return the adapter of a folder.

    Raises ModelError where it is incomplete, or more than pairs of linear layers.
    """
    if not path.is_dir():
        raise refusal(path, "this folder does not exist")
    settings = read_settings(path)
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in _tensors(path).items():
        match = NAME.fullmatch(name)
        if match is None:
            raise refusal(path, f"it holds {name!r}, no matrix of a linear layer")
        if not tensor.isfinite().all():
            raise refusal(path, f"{name!r} holds infinite numbers, or NaN")
        parts.setdefault(match["layer"], {})[match["part"]] = tensor.float()
    if not parts:
        raise refusal(path, f"{WEIGHTS} is empty")
    pairs = {
        layer: _pair(path, settings, layer, matrices)
        for layer, matrices in parts.items()
    }
    return LoraFolder(path, settings, pairs)


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise refusal(path, f"{WEIGHTS} cannot be read ({words(error)})") from error


def _pair(
    path: Path, settings: LoraSettings, layer: str, matrices: Mapping[str, Tensor]
) -> Pair:
    """Return the pair of a layer. Raises ModelError where a matrix is missing, or not
    of the rank that the settings name.
    """
    if len(matrices) < 2:
        raise refusal(path, f"one of the two matrices of {layer!r} is missing")
    down = matrices["A"]
    up = matrices["B"]
    rank = settings.rank_of(layer)
    fits = down.dim() == up.dim() == 2 and down.shape[0] == up.shape[1] == rank
    if not fits:
        raise refusal(
            path,
            f"the matrices of {layer!r} have shapes {_shape(down)} and {_shape(up)}, "
            f"which do not fit a linear layer and rank {rank}",
        )
    return Pair(down, up, settings.scale_of(layer))


def _shape(matrix: Tensor) -> str:
    return " x ".join(map(str, matrix.shape))
