"""Models whose packed weights lie in a folder: written there once, then opened without
the checkpoint's weights.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from foreword.errors import InvalidRequest, ModelError, words
from foreword.files import atomic_folder, check_creatable
from foreword.model.architectures import is_seq2seq, loader
from foreword.model.backend import Mode
from foreword.model.executors.native.backend import NativeBackend
from foreword.model.executors.native.offload import LAYOUT, SHARE
from foreword.model.executors.registry import NATIVE, Capability
from foreword.model.kv.limit import free_memory
from foreword.model.layers import fill_missing
from foreword.model.loading.complete import weights
from foreword.model.loading.sizes import stamps
from foreword.model.model import Model
from foreword.version import VERSION

REST, ABOUT = "rest.safetensors", "about.json"
"""The tensors that are not packed matrices; and what the model is."""


def place(
    folder: str | Path, source: str | Path, config: PreTrainedConfig, form: str | None
) -> Path:
    """Return the folder inside `folder` of a checkpoint's weights in this form; another
    version of it has another one.

    Raises InvalidRequest where no folder can be made, ModelError for models that cannot
    be run so.
    """
    if is_seq2seq(config):
        raise ModelError(
            f"cannot offload {source}: it is an encoder-decoder. Leave "
            "'offload_folder' out"
        )
    about = [LAYOUT, VERSION, config.to_dict(), stamps(source), form]
    digest = sha256(json.dumps(about, default=str).encode())
    name = "-".join(
        filter(
            None,
            [Path(str(source).rpartition(":")[2]).name, form, digest.hexdigest()[:12]],
        )
    )
    result = Path(folder).expanduser() / name
    if not result.is_dir():
        check_creatable(result)
        try:
            result.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(
                f"cannot create {result}: {words(error)}. Choose another offload_folder"
            ) from error
    return result


@torch.no_grad()
def write(model: Model, folder: Path) -> None:
    """Write a model's weights to a folder. Raises ModelError unless it is native."""
    if not isinstance(model.backend, NativeBackend):
        raise ModelError(
            f"cannot offload {model.name}: only backend 'native' reads weights from a "
            f"file, and it runs on '{model.capability.backend}' "
            f"({model.capability.reason}). Leave 'offload_folder' out"
        )
    try:
        _write(model, model.backend, folder)
    except InvalidRequest:
        if not folder.is_dir():  # else another process wrote it first
            raise


def _write(model: Model, backend: NativeBackend, folder: Path) -> None:
    with atomic_folder(folder) as begun:
        backend.write(begun)
        rest = {
            name: tensor.contiguous()
            for name, tensor in weights(model.hf).items()
            if tensor.numel()
        }
        save_file(rest, begun / REST)
        if model.hf.generation_config is not None:
            model.hf.generation_config.save_pretrained(begun)
        about = {
            "weights": model.weights,
            "error": model.capability.error,
            "refused": model.capability.refused,
        }
        (begun / ABOUT).write_text(json.dumps(about), encoding="utf-8")


def opened(
    make: Callable[..., Model],
    folder: Path,
    source: str | Path,
    config: PreTrainedConfig,
    *,
    kv: str | None,
    trusted: bool,
) -> Model:
    """Return a model whose weights were written to a folder; `make` is its class.

    `trusted`: whether code from the checkpoint may run. Raises ModelError if files are
    missing or damaged.
    """
    with _readable(folder):
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        known = Capability(
            Mode.TREE, NATIVE, about["error"], tuple(map(tuple, about["refused"]))
        )
        model = make(_empty(folder, source, config, trusted), str(source), known=known)
        model.quantize(kv=kv)
        model.trust_remote_code = trusted
        fill_missing(model.hf)
        model.device, model.weights = torch.device("cpu"), about["weights"]
        attach(model, folder)
        return model


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Turn what missing and damaged files raise into a ModelError."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(
            f"cannot open {folder}: {words(error)}. Remove that folder, and load the "
            "model again"
        ) from error


def attach(model: Model, folder: Path) -> None:
    """Let a model hold the matrices of a folder, as many layers as fit in memory, and
    read the others from it.
    """
    backend = cast("NativeBackend", model.backend)
    model.offloaded = (
        backend.offload(folder, int(SHARE * free_memory(model.device))) or None
    )
    model.cache_tokens = None


def _empty(
    folder: Path, source: str | Path, config: PreTrainedConfig, trusted: bool
) -> PreTrainedModel:
    """Return the model with unpacked tensors only; the others have no storage."""
    with no_init_weights():
        hf = loader(config).from_config(
            config, dtype=torch.bfloat16, trust_remote_code=trusted
        )
    rest = load_file(folder / REST)
    bare: dict[Tensor, nn.Parameter] = {}
    for module in hf.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            bare.setdefault(
                weight, nn.Parameter(weight.detach().to("meta"), requires_grad=False)
            )
            setattr(module, name, bare[weight])
    hf.load_state_dict(rest, strict=False, assign=True)
    hf.tie_weights()
    hf.config.name_or_path = str(source)
    if (folder / "generation_config.json").is_file():
        hf.generation_config = GenerationConfig.from_pretrained(
            folder, local_files_only=True
        )
    return hf
