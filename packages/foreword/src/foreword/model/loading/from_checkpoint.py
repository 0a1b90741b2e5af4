"""Loads a model from the files of a checkpoint: read, probe, pack and quantize."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from foreword.errors import ForewordError, ModelError, words
from foreword.files import CachedValues, cache
from foreword.model.executors.registry import NATIVE, Capability
from foreword.model.kv.limit import free_memory, return_freed
from foreword.model.layers import fill_missing
from foreword.model.loading import hub, verdicts
from foreword.model.loading.config import in_few_bits, read_config, unloadable
from foreword.model.loading.load import load_weights, parameter_count
from foreword.model.loading.options import dtypes, placed
from foreword.model.loading.sizes import check_layers, stamps
from foreword.native import sampling
from foreword.native.huge_pages import pages_in
from foreword.native.openmp import one_thread, threads_for
from foreword.notices import notify
from foreword.options import ModelOptions

if TYPE_CHECKING:
    from foreword.model.model import Model

LARGE = 2**28
"""Bytes of a checkpoint's files. Smaller ones are loaded in about a second."""


def load(make: "type[Model]", source: str | Path, options: ModelOptions) -> "Model":
    """Return the model of a checkpoint; `make` is its class."""
    weights, kv = options.weights, options.kv
    dtype, trusted = options.dtype, options.trust_remote_code
    where, only = placed(options)
    config = read_config(source, trust_remote_code=trusted, seq2seq=True)
    folder = None
    if options.offload_folder is not None:
        from foreword.model.loading import offloaded

        folder = offloaded.place(options.offload_folder, source, config, weights)
        if folder.is_dir():
            return offloaded.opened(
                make, folder, source, config, kv=kv, trusted=trusted
            ).make_portable(options.portable)
    native = only in (None, NATIVE)
    first, *others = dtypes(dtype, where, config.architectures if native else None)
    probed = native and where.type == "cpu"
    verdict = verdicts.cached(source, config, first) if probed else None
    say = _notifier(source)
    known = None
    if probed:
        known = _known(source, config, first, only, verdict, say)
    if known is not None and known.backend != NATIVE and others:
        return load(make, source, replace(options, dtype=others[0]))
    packs = known is not None and known.backend == NATIVE
    home = None if folder is None else folder.parent
    say(f"reading {source}")
    with _reported(source, where):
        temporary = home or _scratch(source, config, weights, packs, trusted=trusted)
        with pages_in(temporary):
            hf = load_weights(
                source, config, first, trust_remote_code=trusted, filled=not packs
            )
            model = _packed(make, hf, source, where, only, known, trusted=trusted)
        del hf  # `model.hf` is the same one
        if probed and known is None:  # its files may only be here now
            verdict = verdict or verdicts.cached(source, config, first)
            verdicts.write(verdict, model.capability)
        say(f"packing {source}")
        _quantize(model, weights, kv, folder)
        model.make_portable(options.portable)
    model.trust_remote_code = trusted
    if others and model.capability.backend != NATIVE:
        del model  # or both would be in memory
        return load(make, source, replace(options, dtype=others[0]))
    if known is not None and only is None:
        model.warn_of_slow_mode()
    _finish(source)
    return model


def _quantize(
    model: "Model", weights: str | None, kv: str | None, folder: Path | None
) -> None:
    """Quantize a packed model, then move its weights to `folder`, if there is one."""
    with pages_in(None if folder is None else folder.parent):
        model.quantize(weights, kv)
    fill_missing(model.hf)
    if folder is not None:
        from foreword.model.loading import offloaded

        offloaded.write(model, folder)
        offloaded.attach(model, folder)


def _finish(source: str | Path) -> None:
    """Free what loading held; compile now what the first answer needs."""
    sampling.library()
    if (path := hub.gguf(source)) is not None:
        from foreword.model.quantized.gguf_file import GgufFile

        GgufFile.forget(path)
    return_freed()


def _packed(
    make: "type[Model]",
    hf: PreTrainedModel,
    source: str | Path,
    where: torch.device,
    only: str | None,
    known: Capability | None,
    *,
    trusted: bool,
) -> "Model":
    """Return the model, packed for its backend; it is probed unless `known`."""
    name = str(source)
    if known is None:
        from foreword.model.loading import sentence

        text = sentence.tokens(source, hf, trusted=trusted)
        nn.Module.to(hf, where)
        return make(hf, name, backend=only, text=text)
    # Other torch threads would spin between the short operations on a small model.
    with one_thread(), threads_for(hf)():
        return make(hf, name, backend=only, known=known)


def _known(
    source: str | Path,
    config: PreTrainedConfig,
    dtype: torch.dtype | str,
    only: str | None,
    verdict: CachedValues | None,
    say: Callable[[str], object],
) -> Capability | None:
    """Return the kept verdict about a checkpoint, or that about its first layers, which
    is kept then; None where it must be probed whole.
    """
    known = None if verdict is None else verdicts.read(verdict)
    if known is None:
        say(f"checking how this machine runs {source}, once")
        from foreword.model.loading import first_layers

        with _reported(source, torch.device("cpu")):
            known = first_layers.capability(source, config, dtype, only)
        if known is not None:
            verdicts.write(verdict, known)
    if known is not None and only == NATIVE != known.backend:
        return None  # the probe says why it cannot
    return known


def _notifier(source: str | Path) -> Callable[[str], object]:
    """Return what names the phases of a load, if the checkpoint is large."""
    with suppress(OSError, ForewordError, AttributeError, KeyError, TypeError):
        if sum(size for _, size, _ in stamps(source, fetch=False)) > LARGE:
            return notify
    return lambda _: None


@contextmanager
def _reported(source: str | Path, device: torch.device) -> Iterator[None]:
    """Turn what loading raises into a ModelError."""
    try:
        yield
    except ForewordError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelError(
            f"cannot load {source}: it does not fit on {device}: {error}. Try a "
            "smaller dtype or another device"
        ) from error
    except Exception as error:
        raise unloadable(source, error, {}) from error


def _scratch(
    source: str | Path,
    config: PreTrainedConfig,
    weights: str | None,
    packs: bool,
    *,
    trusted: bool,
) -> Path | None:
    """Return the folder for weights in 16 bits that only exist until they are
    quantized; None = the memory. `packs`: few bits are read without such weights.
    """
    coded = in_few_bits(source, config)
    if (weights is None and not coded) or (coded and packs):
        return None
    if hub.gguf(source) is None:
        check_layers(source, config)
    from foreword.model.executors.native.offload import SHARE

    needed = 2 * parameter_count(config, trust_remote_code=trusted)
    if needed <= SHARE * free_memory(torch.device("cpu")):
        return None
    try:
        folder = cache()
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"cannot load {source}: its weights in 16 bits ({needed / 2**30:.1f} GiB) "
            "do not fit in the free memory, and no file can be made for them: "
            f"{words(error)}. Set XDG_CACHE_HOME to a folder with room"
        ) from error
    return folder
