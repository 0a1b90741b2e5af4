"""Loads checkpoints with quantized matrices, and GGUF files, into plain models.

Every quantized matrix is dequantized into the model's dtype, or left without storage.
The quantized form stays next to the layer, as its attribute `coded`
(`foreword.model.quantized.coded.Matrix`), for backends that multiply by it; one of
floats as `coded_floats`, for backends on CUDA.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from foreword.model.loading import hub
from foreword.model.loading.config import QUANTIZATION, quantization, unsupported
from foreword.model.loading.sizes import check_total, empty, files
from foreword.model.quantized.coded import Coded, Matrix
from foreword.model.quantized.gguf_file import GgufFile
from foreword.model.quantized.gguf_weights import weights
from foreword.model.quantized.layer import Format, Layer, named
from foreword.native.huge_pages import Pages
from foreword.native.openmp import in_parallel
from foreword.registry import WEIGHT_FORMATS


def load_dequantized(
    pretrained_model_name_or_path: str | Path,
    config: PreTrainedConfig,
    dtype: torch.dtype | str,
    *,
    trust_remote_code: bool,
    **how: Any,
) -> tuple[PreTrainedModel, Mapping[str, Any]]:
    """Return the model of a quantized checkpoint and transformers' loading info; `how`
    as for `_filled`.

    Raises ModelError that names the tensor or the setting that cannot be read.
    """
    source, settings = pretrained_model_name_or_path, quantization(config) or {}
    kind = dtype if isinstance(dtype, torch.dtype) else _dtype(config, dtype)
    tensors, matrices, unused = read_tensors(str(source), files(source), settings, kind)
    config = deepcopy(config)
    for part in (config, config.get_text_config()):
        if hasattr(part, QUANTIZATION):
            delattr(part, QUANTIZATION)
    model = empty(config, trust_remote_code=trust_remote_code)
    how |= {"trust_remote_code": trust_remote_code}
    model, info = _filled(str(source), model, tensors, matrices, kind, **how)
    return model, {**info, "unexpected_keys": set(info["unexpected_keys"]) - unused}


def load_gguf(
    source: str | Path, config: PreTrainedConfig, dtype: torch.dtype | str, **how: Any
) -> tuple[PreTrainedModel, Mapping[str, Any]]:
    """Return the model of a GGUF file and transformers' loading info; `how` as for
    `_filled`.

    Raises ModelError for a tensor that the model has no place for.
    """
    file = GgufFile.open(source, cast(Path, hub.gguf(source)))
    kind = dtype if isinstance(dtype, torch.dtype) else _dtype(config, dtype)
    model = empty(config)
    held = weights(file, model, kind)
    # what the file lacks would be made
    check_total(source, model, file.bytes)
    return _filled(str(source), model, *held, kind, **how)


def _filled(
    source: str,
    empty: PreTrainedModel,
    tensors: Mapping[str, Tensor],
    matrices: Mapping[str, Matrix],
    dtype: torch.dtype,
    *,
    filled: bool = True,
    trust_remote_code: bool = False,
    **how: Any,
) -> tuple[PreTrainedModel, Mapping[str, Any]]:
    """Return the model that holds these tensors, and transformers' loading info; `how`
    as for its `from_pretrained`.

    Linear layers and embeddings have their matrices as `coded`, and experts a dict of
    theirs. Unless `filled`, their weights have no storage; where transformers computes
    something from one of them, all are filled.
    """
    pages = Pages()
    held = dict(tensors)
    # these take no memory until they are written
    held |= {name: pages.empty(one.shape, dtype) for name, one in matrices.items()}
    read = [name for name, matrix in matrices.items() if filled or matrix.floats]
    for _ in in_parallel(lambda name: matrices[name].write(held[name]), read):
        pass
    places = {held[name].data_ptr(): matrix for name, matrix in matrices.items()}
    bare = places.keys() - {held[name].data_ptr() for name in read}
    model, info = cast(Any, type(empty)).from_pretrained(
        None,
        config=empty.config,
        state_dict=held,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        **how,
    )
    model.config.name_or_path = source
    owners = _found(model, places)
    if bare - {address for _, _, address in owners}:
        # transformers computed a parameter from one that has no numbers yet
        how["trust_remote_code"] = trust_remote_code
        return _filled(source, empty, tensors, matrices, dtype, **how)
    _attach(owners, places, bare)
    return model, info


def _attach(
    owners: list[tuple[nn.Module, str, int]],
    places: Mapping[int, Matrix],
    bare: Set[int],
) -> None:
    """Put the matrices beside the parameters of `owners`; drop the storage of those at
    the addresses `bare`.
    """
    unread: dict[int, nn.Parameter] = {}
    for module, name, address in owners:
        matrix = places[address]
        if matrix.floats:
            vars(module)["coded_floats"] = matrix
        elif name == "weight":
            vars(module)["coded"] = matrix
        else:
            vars(module).setdefault("coded", {})[name] = matrix
        if address in bare:
            weight = module.get_parameter(name).detach().to("meta")
            # tied weights stay one parameter
            unread.setdefault(address, nn.Parameter(weight, requires_grad=False))
            setattr(module, name, unread[address])
        elif isinstance(module, nn.Embedding):
            # it stays when the others are packed, and so must not share their pages
            module.weight.data = module.weight.data.clone()


def _found(
    model: nn.Module, places: Mapping[int, Matrix]
) -> list[tuple[nn.Module, str, int]]:
    """Return module, name and address of the parameters that lie at these addresses;
    transformers renames weights.
    """
    held = (
        (module, name, weight.data_ptr())
        for module in model.modules()
        for name, weight in module.named_parameters(recurse=False)
    )
    return [one for one in held if one[2] in places]


def _dtype(config: PreTrainedConfig, name: str) -> torch.dtype:
    """Return the dtype of a name; for "auto" that of the config."""
    if name != "auto":
        return getattr(torch, name)
    usual = config.dtype or config.get_text_config().dtype
    return usual if isinstance(usual, torch.dtype) else torch.bfloat16


def read_tensors(
    source: str,
    files: list[Path],
    settings: Mapping[str, Any],
    dtype: torch.dtype,
    predicate: Callable[[str], bool] = lambda _: True,
) -> tuple[dict[str, Tensor], dict[str, Matrix], set[str]]:
    """Return the plain tensors of a checkpoint, its quantized matrices, and names that
    may be left out; of those whose names satisfy `predicate`.
    """
    method = WEIGHT_FORMATS[settings["quant_method"]]
    if setting := method.refused(settings):
        raise unsupported(source, setting)
    matrices: dict[str, Matrix] = {}
    opened = [safe_open(file, framework="pt") for file in files]
    every = {name: file for file in opened for name in file.keys()}  # noqa: SIM118 - a handle cannot be iterated
    used = [name for name in every if predicate(name)]
    used = [name for name in used if not name.endswith(method.unused)]
    places = {name: every[name] for name in used}
    layers = _layers(places, method)
    parts = {name for layer in layers.values() for name in layer.values()}
    tensors = {
        name: file.get_tensor(name)
        for name, file in places.items()
        if name not in parts
    }
    for name, tensor in tensors.items():
        few = tensor.is_floating_point() and tensor.element_size() == 1
        if few or (name.endswith(".weight") and not tensor.is_floating_point()):
            raise Layer(source, name, {}, settings).error(
                "", f"holds {named(tensor.dtype)} and has no scale"
            )
    for name, endings in layers.items():
        held = {ending: (places[full], full) for ending, full in endings.items()}
        layer = partial(_layer, source, name, held, settings)
        matrix = method.read(layer())
        if isinstance(matrix, Coded):
            matrices[name + method.weight] = _matrix(method, layer, matrix)
        else:
            tensors[name + method.weight] = matrix.to(dtype)
    biases = {name + ".bias" for name in layers}
    zeros = {name for name in biases & set(tensors) if not tensors[name].any()}
    return tensors, matrices, zeros


def _layer(
    source: str,
    name: str,
    held: Mapping[str, tuple[Any, str]],
    settings: Mapping[str, Any],
) -> Layer:
    return Layer(
        source,
        name,
        {ending: file.get_tensor(full) for ending, (file, full) in held.items()},
        settings,
    )


def _matrix(method: Format, layer: Callable[[], Layer], first: Coded) -> Matrix:
    """Return a quantized matrix, which reads its tensors again at each use."""

    def shaped(weights: Tensor) -> Tensor:
        return method.shaped(layer(), weights)

    exact = method.exact
    return Matrix(
        lambda: cast(Coded, method.read(layer())),
        shaped(first.codes.to("meta", torch.float32)).shape,
        shaped,
        None if exact is None else lambda: exact(layer()),
        floats=first.levels.is_floating_point(),
    )


def _layers(names: Mapping[str, object], method: Format) -> dict[str, dict[str, str]]:
    """Return the names of the tensors of every quantized matrix, by their endings."""
    layers: dict[str, dict[str, str]] = {}
    for name, ending in _parts(names, method.endings):
        layers.setdefault(name.removesuffix(ending), {})[ending] = name
    if method.codes is not None:
        for name, endings in layers.items():
            if name + method.codes in names:
                endings[method.codes] = name + method.codes
    if method.codes == "":  # else the ending is that of a plain tensor
        layers = {name: held for name, held in layers.items() if "" in held}
    return layers


def _parts(
    names: Mapping[str, object], endings: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    for name in names:
        for ending in endings:
            if name.endswith(ending):
                yield name, ending
                break
