"""The settings of a model, of drafting and of scheduling: each is declared here, once.

`LLM`, the command line, the server, transformers' `generate` and the benchmark convert
what they are given into these. Names are checked at once and nothing heavy is imported.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from foreword.checks import whole
from foreword.errors import InvalidRequest, ModelError
from foreword.method_name import parsed, spelled
from foreword.registry import BUDGETS, GUARANTEES, RULES

if TYPE_CHECKING:
    import torch

    from foreword.budget.base import DraftBudget

NODES = 64
"""Draft tokens. Most of a sequence in one round; its pages have room for them."""
NATIVE = "native"
"""The backend in C; of the others, only 'graph' reads quantized weights."""
EXECUTORS = {
    name: f"foreword.model.executors.{folder}.build"
    for name, folder in {
        "native": "native",
        "graph": "cuda",
        "pool": "torch",
        "cache": "cache",
        "plain": "cache",
    }.items()
}
"""Backend -> the module that builds it (docs/extend/backend.md)."""
POOL = "pool"
"""The backend of transformers' own code with our pages, which alone runs on ranks."""
ONLY_NATIVE = ("weights", "kv", "offload_folder", "portable")
"""Settings that only the native backend has."""


@dataclass(frozen=True, slots=True)
class Described:
    """What the command line says about a setting."""

    help: str
    metavar: str | None = None
    kind: type = str
    """Type of its value on the command line."""
    choices: Collection[str] = ()
    also: str = ""
    """A second name on the command line."""


def setting(
    default: Any,
    help: str,
    metavar: str | None = None,
    kind: type = str,
    choices: Collection[str] = (),
    also: str = "",
) -> Any:
    """Declare a setting, and what the command line says about it."""
    described = Described(help, metavar, kind, choices, also)
    return field(default=default, metadata={"described": described})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingOptions:
    """How a checkpoint is loaded. Raises ModelError for an unknown dtype."""

    panel: ClassVar[str] = "Model"
    """Group of the options in `--help`."""

    dtype: "str | torch.dtype" = setting(
        "auto",
        "float32, bfloat16, float16 or auto (bfloat16 where fast).",
        "DTYPE",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    device: str = setting("auto", "Device: auto, cpu, cuda, cuda:1 …", "DEVICE")
    trust_remote_code: bool = setting(
        False, "Permission to run code from the model's folder.", kind=bool
    )

    def __post_init__(self) -> None:
        auto, *dtypes = _choices(self, "dtype")
        if str(self.dtype).removeprefix("torch.") not in (auto, *dtypes):
            raise ModelError(
                f"'dtype' must be 'auto' or one of {', '.join(dtypes)}, got "
                f"{self.dtype!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(LoadingOptions):
    """How a model is loaded and run (docs/targets/quantized.md, docs/how-it-works.md).

    Raises ModelError for an unknown dtype, InvalidRequest for another unknown name or a
    combination that no backend has.
    """

    backend: str | None = setting(
        None,
        "Backend: native, graph, pool, cache or plain. Default: the best supported.",
        "BACKEND",
        choices=tuple(EXECUTORS),
    )
    weights: str | None = setting(
        None,
        "int8 or int4: form of linear weights (backend native). Default: the dtype.",
        "FORM",
        choices=("int8", "int4"),
    )
    kv: str | None = setting(
        None,
        "int8: keys and values in 8 bits (backend native). Default: the dtype.",
        "FORM",
        choices=("int8",),
    )
    offload_folder: str | Path | None = setting(
        None,
        "Folder for packed weights; every forward reads from it what does not fit in "
        "memory.",
        "DIR",
        kind=Path,
    )
    portable: bool = setting(
        False,
        "The same text on every processor, at the cost of instructions for bfloat16 "
        "(backend native).",
        kind=bool,
    )
    draft_vocabulary: int | None = setting(
        None,
        "Token ids that a draft model chooses from, the first N. Default: 32,768 of a "
        "large vocabulary.",
        "N",
        kind=int,
    )
    tensor_parallel: int = setting(
        1,
        "Processes that share the model's weights.",
        "N",
        kind=int,
        also="--tensor-parallel-size",
    )

    def __post_init__(self) -> None:
        LoadingOptions.__post_init__(self)
        for name in ("weights", "kv", "backend"):
            _check_choice(self, name)
        for name in ONLY_NATIVE:
            if name != "weights" or self.backend != "graph":
                self._check_native(name)
        whole(1, optional=True)("draft_vocabulary", self.draft_vocabulary)
        self._check_ranks()

    def _check_native(self, name: str) -> None:
        """Raise InvalidRequest for native settings beside another backend or dtype."""
        value = getattr(self, name)
        fits_dtype = str(self.dtype).removeprefix("torch.") in ("auto", "bfloat16")
        if value in (None, False) or (self.backend in (None, NATIVE) and fits_dtype):
            return
        raise InvalidRequest(
            f"cannot use {name}={str(value)!r} with dtype={self.dtype!r} and "
            f"backend={self.backend!r}: only backend 'native' has it, and it runs "
            "models in bfloat16. Leave 'dtype' and 'backend' out"
        )

    def _check_ranks(self) -> None:
        """Raise InvalidRequest for ranks out of range or beside other backends."""
        whole(1)("tensor_parallel", self.tensor_parallel)
        if self.tensor_parallel == 1:
            return
        others = {name: getattr(self, name) for name in ONLY_NATIVE}
        if self.backend != POOL:
            others["backend"] = self.backend
        for name, value in others.items():
            if value not in (None, False):
                raise InvalidRequest(
                    f"cannot use tensor_parallel={self.tensor_parallel} with "
                    f"{name}={str(value)!r}: only backend 'pool' runs on several "
                    f"ranks. Leave '{name}' out"
                )

    @property
    def changes_scores(self) -> bool:
        """Whether scores differ from the usual ones of the checkpoint in bfloat16."""
        return self.portable or (self.weights, self.kv) != (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingOptions:
    """How draft tokens are proposed, and which of them are accepted.

    Raises UnknownMethod for an unknown name, InvalidRequest for a value out of range or
    both a budget and a fixed number.
    """

    panel: ClassVar[str] = "Drafting"

    method: str | None = setting(
        None,
        "Drafting method, see `foreword methods`; none: plain decoding. Default: auto.",
        "NAME",
    )
    rule: str | None = setting(
        None,
        "Verification rule, or guarantee: same-text or same-distribution. Default: "
        "match.",
        "NAME",
    )
    budget: "str | DraftBudget | None" = setting(
        None,
        "Draft-token budget: adaptive, heuristic, confidence. Default: adaptive.",
        "NAME",
    )
    nodes: int | None = setting(
        None, "Fixed draft tokens per round; replaces --budget.", "N", kind=int
    )

    def __post_init__(self) -> None:
        if self.method is not None:
            parsed(self.method)
            object.__setattr__(self, "method", spelled(self.method))
        if self.rule is not None:
            RULES.check(self.rule, *GUARANTEES)
        if isinstance(self.budget, str):
            BUDGETS.check(self.budget.partition(":")[0])
        whole(0, NODES, optional=True)("nodes", self.nodes)
        if self.budget is not None and self.nodes is not None:
            raise InvalidRequest(
                f"cannot use both nodes={self.nodes} and budget={self.budget!r}: each "
                "sets the number of draft tokens. Give one"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingOptions:
    """How many sequences share a round, and its memory. May raise InvalidRequest."""

    panel: ClassVar[str] = "Scheduling"

    slots: int = setting(8, "Sequences in a batch.", "N", kind=int)
    chunk: int = setting(512, "Prompt tokens read in one round.", "N", kind=int)
    read_ms: int | None = setting(
        None,
        "Time that reading prompts adds to a round while others write. Default: the "
        "round's own.",
        "MS",
        kind=int,
    )
    cache_tokens: int | None = setting(
        None,
        "Most tokens whose keys and values are kept. Default: by memory.",
        "N",
        kind=int,
    )

    def __post_init__(self) -> None:
        whole(1)("slots", self.slots)
        whole(1)("chunk", self.chunk)
        whole(1, optional=True)("read_ms", self.read_ms)
        whole(1, optional=True)("cache_tokens", self.cache_tokens)


def keywords(options: Any) -> dict[str, Any]:
    """Return the settings by name."""
    return {one.name: getattr(options, one.name) for one in fields(options)}


def _choices(options: Any, name: str) -> Collection[str]:
    if name == "backend":
        return EXECUTORS  # packages add some
    (option,) = [one for one in fields(options) if one.name == name]
    return option.metadata["described"].choices


def _check_choice(options: Any, name: str) -> None:
    value, choices = getattr(options, name), _choices(options, name)
    if value is not None and value not in choices:
        raise InvalidRequest(
            f"cannot use {name}={value!r}: choose one of {', '.join(choices)}, or "
            "leave it out"
        )
