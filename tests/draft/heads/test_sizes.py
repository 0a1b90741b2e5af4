"""Sizes in a head's config are compared with its file before allocation."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from folders import change, configured
from foreword.draft import method
from foreword.draft.heads.dflash import DFlashHead
from foreword.draft.heads.dspark import DSparkHead
from foreword.draft.heads.eagle_checkpoint import dump
from foreword.draft.heads.eagle_model import EagleConfig, EagleHead
from foreword.draft.heads.masked import Layout
from foreword.draft.heads.medusa import MedusaHeads
from foreword.errors import ModelError
from foreword.model.head_layers import LlamaConfig, Qwen3Config
from foreword.model.loading.checkpoint import Checkpoint
from running import target
from tiny_sizes import HEAD, sizes

SIZES = sizes(384, 96, 2, 2, 1, **HEAD)
LIMIT = 2**26
"""Bytes: several times those of these heads, a tenth of what the sizes ask for."""
NOT_HELD = "and the longest side of its tensors is 8192"


def checkpoint(kind: str) -> Checkpoint:
    """Return an untrained head for the bundled target."""
    layout = Layout(
        Qwen3Config(**SIZES), (2, 5), 4, 3, sample_from_anchor=False, depth=8
    )
    match kind:
        case "eagle":
            llama = LlamaConfig(**SIZES)
            about = EagleConfig(
                llama=llama,
                states=(2, 4, 5),
                target_hidden=384,
                draft_vocab=64,
                embeds=True,
            )
            return dump(EagleHead(about), torch.bfloat16, target().hf.config)
        case "dflash":
            return DFlashHead(layout).dump(torch.bfloat16)
        case "dspark":
            return DSparkHead(layout, 6).dump(torch.bfloat16)
        case _:
            return MedusaHeads(3, 1, 384, 8192, own=False).dump(torch.bfloat16)


@pytest.fixture
def folder(request, tmp_path) -> Path:
    checkpoint(request.getfixturevalue("kind")).write(tmp_path / "head")
    return tmp_path / "head"


class Allocated(TorchDispatchMode):
    """Fails once torch has made tensors of LIMIT bytes, before they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        made = func(*args, **(kwargs or {}))
        if all(one.alias_info is None for one in func._schema.returns):
            held = [
                one
                for one in tree_leaves(made)
                if isinstance(one, Tensor) and not one.is_meta
            ]
            self.bytes += sum(one.untyped_storage().nbytes() for one in held)
        if self.bytes > LIMIT:
            pytest.fail(f"{self.bytes} bytes were allocated")
        return made


@pytest.fixture(autouse=True)
def allocated(folder: Path) -> Iterator[None]:
    """Counts what is made after the files and the target."""
    assert folder
    target()
    with Allocated():
        yield


def refused(kind: str, folder: Path, said: str) -> None:
    with pytest.raises(ModelError, match=said) as error:
        method(kind).load(folder, target(), None)
    assert re.match(r"cannot load .+: .+\. \w+", str(error.value))


@pytest.mark.parametrize(
    ("kind", "entry", "size", "said"),
    [
        ("eagle", "hidden_size", 10**6, f" is 1000000, {NOT_HELD}"),
        ("eagle", "intermediate_size", 10**9, f" is 1000000000, {NOT_HELD}"),
        ("eagle", "num_attention_heads", 10**6, ""),
        ("eagle", "head_dim", 10**9, ""),
        ("dflash", "hidden_size", 10**6, f" is 1000000, {NOT_HELD[:-4]}768"),
        ("dflash", "num_key_value_heads", 10**6, ""),
        ("dspark", "intermediate_size", 10**9, f" is 1000000000, {NOT_HELD}"),
        ("dspark", "markov_rank", 10**6, f" is 1000000, {NOT_HELD}"),
        ("dspark", "vocab_size", 10**9, f" is 1000000000, {NOT_HELD}"),
    ],
)
def test_sizes_beyond_all_tensors_are_refused_by_their_entry(
    kind, entry, size, said, folder
):
    configured(folder, **{entry: size})
    refused(kind, folder, f"{entry} in its config.json{said}")


HIDDEN = "num_hidden_layers in its config.json"
LAYERS = r"medusa_num_heads \* medusa_num_layers in"


@pytest.mark.parametrize(
    ("kind", "entry", "size", "said"),
    [
        ("dflash", "num_hidden_layers", 10**6, f"{HIDDEN} is 1000000, .* is 2"),
        ("dspark", "num_hidden_layers", 10**9, f"{HIDDEN} is 1000000000, .* is 2"),
        ("medusa", "medusa_num_heads", 10**6, f"{LAYERS} .* is 1000000, .* is 6"),
        ("medusa", "medusa_num_layers", 10**6, f"{LAYERS} .* is 3000000, .* is 6"),
        (
            "dflash",
            "block_size",
            10**9,
            "block_size 1000000000. .* block_size 2 to 256",
        ),
    ],
)
def test_counts_beyond_the_tensors_are_refused_by_their_entry(
    kind, entry, size, said, folder
):
    configured(folder, **{entry: size})
    refused(kind, folder, said)


@pytest.mark.parametrize(
    ("kind", "entries", "odd"),
    [
        ("eagle", {"intermediate_size": 40_000}, "midlayer.norm.weight"),
        ("dspark", {"hidden_size": 20_000}, "norm.weight"),
        ("medusa", {}, "0.0.linear.weight"),
    ],
)
def test_long_vectors_do_not_stand_for_matrices(kind, entries, odd, folder):
    """Vectors of a few bytes are as long as the sides that the config asks for."""
    side = next(iter(entries.values()), 20_000)
    change(folder, entries, {odd: torch.ones(side, 1, dtype=torch.bfloat16)})
    refused(kind, folder, rf"\.weight has the shape \[.*\], not \[.*{side}")


@pytest.mark.parametrize("kind", ["eagle", "dspark"])
def test_tables_that_are_computed_are_not_larger_than_a_head(kind, folder):
    rope = {
        "rope_type": "linear",
        "rope_theta": 10_000.0,
        "factor": 2.0,
        "partial_rotary_factor": 10.0**9,
    }
    configured(folder, rope_parameters=rope)
    refused(kind, folder, "partial_rotary_factor in its config.json is 1000000000")


@pytest.mark.parametrize("kind", ["dflash"])
def test_pickled_tensors_count_as_the_bytes_that_they_hold(kind, folder):
    """A pickle may repeat one number as a matrix of any size."""
    tensors = load_file(folder / "model.safetensors")
    for part, shape in {
        "gate": (200_000, 384),
        "up": (200_000, 384),
        "down": (384, 200_000),
    }.items():
        tensors[f"layers.0.mlp.{part}_proj.weight"] = torch.ones(
            1, dtype=torch.bfloat16
        ).expand(shape)
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    configured(folder, intermediate_size=200_000)
    refused(kind, folder, "its config asks for .* numbers, and its files have .* bytes")


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        ("eagle", {"hidden_size": "wide"}),
        ("eagle", {"num_attention_heads": 0}),
        ("dflash", {"num_attention_heads": 0}),
        ("dflash", {"head_dim": -32}),
        ("dflash", {"block_size": "four"}),
        ("dspark", {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1.0}}),
    ],
)
def test_sizes_that_are_none_are_refused(kind, entries, folder):
    configured(folder, **entries)
    refused(kind, folder, r"config\.json")


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_matrices_of_one_dimension_are_refused(kind, folder):
    name = {"eagle": "fc.weight", "medusa": "0.0.linear.weight"}[kind]
    change(folder, {}, {name: torch.ones((), dtype=torch.bfloat16)})
    refused(kind, folder, name)
