"""`Model`: a Hugging Face language model, run by the fastest exact backend."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model.backend import Mode, ReadsHiddenStates
from foreword.model.cost import Cost, known
from foreword.model.executors.native.backend import NativeBackend
from foreword.model.executors.registry import NATIVE, Capability, build_backend
from foreword.model.kv.limit import most_tokens
from foreword.model.kv.reads import Read
from foreword.model.layers import drop_codes, layer_count, rank_count
from foreword.model.loading import from_checkpoint
from foreword.model.loading.load import eos_ids, forced_tokens
from foreword.model.loading.options import FORMS, check_forms, check_portable
from foreword.native.openmp import limit_threads, one_thread
from foreword.options import ModelOptions
from foreword.sampling.draw import Draw
from foreword.types.growth import GrownTree, TreeRequest

if TYPE_CHECKING:
    from foreword.model.executors.torch.packed_linear import Swap

NO_LIMIT = 2**31
"""Tokens. Context length of a model whose config gives none."""
CONTEXT = (
    "max_position_embeddings",
    "max_decoder_position_embeddings",
    "max_target_positions",
)
"""Names of the context length in a config."""
WHOLE = 16
"""Bits of a weight that is not quantized."""


class Model:
    """A causal language model, or an encoder-decoder, and the cached state of its open
    sequences.

    Use `load` for a checkpoint and `borrow` for a model that its owner keeps using. The
    constructor takes a model in memory and changes it in place: afterwards it works
    only through this class.
    """

    adapters: Mapping[str, Any] = MappingProxyType({})
    """By name, what a sequence is given to be read with an adapter."""
    trust_remote_code = False
    """Whether Python code from the folder of its draft model may run."""
    draft_vocabulary: int | None = None
    """First token ids, from which its draft model chooses; None = by their number."""
    portable = False
    """Whether its scores are the same on every processor."""

    def __init__(
        self,
        hf: PreTrainedModel,
        name: str = "",
        *,
        known: Capability | None = None,
        swaps: "list[Swap] | None" = None,
        backend: str | None = None,
        text: Sequence[int] = (),
    ) -> None:
        self.hf = hf.eval()
        self.name = name or hf.config.name_or_path or type(hf).__name__
        self.seq2seq = forced_tokens(hf, self.name)
        """Tokens that an encoder-decoder's settings force; None = decoder-only."""
        self.parameters: int = sum(parameter.numel() for parameter in hf.parameters())
        """Weights of the checkpoint, tied ones once; a backend may drop some."""
        owned = swaps is None
        replaced: list[Swap] = [] if swaps is None else swaps
        if known is None:
            from foreword.model.probe.probe import probed

            self.backend, self.capability = probed(
                hf, self.name, replaced, owned=owned, backend=backend, text=text
            )
        else:
            self.backend = build_backend(hf, known, replaced, owned=owned)
            self.capability = known
        self.device: torch.device = next(
            weight.device for weight in hf.parameters() if not weight.is_meta
        )
        self.weights: str | None = None
        self.kv: str | None = None
        """Form of keys, and above of weights, such as "int8"; None = the dtype."""
        self.ranks = rank_count(hf)
        """Processes that share the weights; None = all are here."""
        self.offloaded: int | None = None
        """Layers that are read from disk in every forward; None = all are in memory."""
        self.cache_tokens = None
        self._cost: Cost | None = None
        self._checked_layers: set[tuple[int, ...]] = set()
        """Layer numbers that `check_hidden_states` has accepted."""
        config = hf.config.get_text_config()
        self.vocab: int = config.vocab_size
        limits = (getattr(config, name, None) for name in CONTEXT)
        self.context: int = next(filter(None, limits), NO_LIMIT)
        if owned:
            self._warn_of_invalid_ids()
        if known is None and backend is None:
            self.warn_of_slow_mode()

    def _warn_of_invalid_ids(self) -> None:
        if invalid := eos_ids(self.hf)[1]:
            warnings.warn(
                f"ignoring the end-of-text ids {invalid}: {self.name} has "
                f"{self.vocab} tokens, none with these ids",
                stacklevel=4,
            )

    def warn_of_slow_mode(self) -> None:
        """Warn where draft trees cannot be scored."""
        good = (Mode.TREE,) if self.seq2seq is None else (Mode.TREE, Mode.CACHE)
        if self.mode not in good:
            warnings.warn(self.capability.warning(self.name), stacklevel=4)

    @classmethod
    def load(
        cls, source: str | Path, options: ModelOptions | None = None, **settings: Any
    ) -> "Model":
        """Load a checkpoint from a folder, the hub or a GGUF file.

        `settings` are fields of ModelOptions. `dtype="auto"` is bfloat16 on a CPU that
        multiplies it in hardware, and on any CPU where the native backend runs the
        model, else float32; on an accelerator it is the checkpoint's own. `backend`
        None takes the fastest that gives the model's own scores (docs/how-it-works.md).
        `weights` and `kv` make another model, of fewer bytes. `offload_folder` gets the
        packed weights; every forward reads from it what does not fit in memory
        (docs/targets/larger-than-memory.md). `trust_remote_code` allows Python code
        from its folder and its draft model's, else refused. Raises ModelError when the
        model does not exist, its weights are incomplete or not finite, or it cannot run
        on that backend.
        """
        limit_threads()
        if options is None:
            options = ModelOptions(**settings)
        load = from_checkpoint.load
        if options.tensor_parallel > 1:
            from foreword.model.parallel.load import load  # seldom needed

        model = load(cls, source, options)
        model.draft_vocabulary = options.draft_vocabulary
        return model

    @property
    def mode(self) -> Mode:
        """Which draft tokens one forward can score."""
        return self.capability.mode

    @cached_property
    def dtype(self) -> torch.dtype:
        return self.hf.dtype  # looks at every module

    @property
    def forms(self) -> dict[str, str | int]:
        """Return what makes it another model than the plain one."""
        names = ("weights", "kv", "offloaded", "portable", "ranks")
        forms = {name: getattr(self, name) for name in names}
        return {name: form for name, form in forms.items() if form not in (None, False)}

    @property
    def eos(self) -> frozenset[int]:
        """Return the end-of-text ids of the checkpoint's generation settings."""
        return eos_ids(self.hf)[0]

    @property
    def cost(self) -> Cost:
        """Return `cost(nodes, rows, context)` in seconds; measured once a machine."""
        if self._cost is None:
            self._cost = known(self.backend, self.vocab, self.context, self.speed_key)
        return self._cost

    def forget_cost(self) -> None:
        """Measure the cost anew when it is needed."""
        self._cost = None

    @property
    def speed_key(self) -> dict[str, Any]:
        """Return what the speed of a forward depends on: sizes, device, forms."""
        config = self.hf.config.get_text_config().to_dict()
        sizes = {name: size for name, size in config.items() if type(size) is int}
        device = self.device.type
        if device == "cuda":
            device = torch.cuda.get_device_name(self.device)
        return {
            "model": type(self.hf).__name__,
            "sizes": sizes,
            "parameters": self.parameters,
            "dtype": str(self.dtype),
            "device": device,
            "backend": self.capability.backend,
            **self.forms,
        }

    def single_torch_thread(self) -> AbstractContextManager[None]:
        """Keep torch single-threaded, so that its threads do not spin on the cores."""
        return one_thread() if self.capability.backend == NATIVE else nullcontext()

    def quantize_int8(self) -> None:
        """Quantize a draft model to int8 where that is faster; it cannot be undone."""
        getattr(self.backend, "quantize", lambda: None)()

    def quantize(self, weights: str | None = None, kv: str | None = None) -> None:
        """Quantize the linear weights from now on: take the checkpoint's own codes if
        it has them, or make codes.

        `kv` quantizes the keys and values of sequences opened later. The result is
        another model, whose text differs. Raises ModelError on a backend that does not
        read quantized weights or keys.
        """
        check_forms(self.name, self.capability, weights=weights, kv=kv)
        backend = cast("NativeBackend", self.backend)
        bits = getattr(self.backend, "take_codes", lambda: WHOLE)()
        if bits < WHOLE:
            self.weights = f"{bits:.1f} bits"
        drop_codes(self.hf)
        if weights is not None and self.weights is not None:
            raise ModelError(
                f"cannot hold {self.name} in {weights}: it has {self.weights} weights. "
                "Leave 'weights' out"
            )
        if weights is not None:
            backend.quantize(coding=FORMS["weights"][weights])
        if kv is not None:
            backend.quantize_kv()
        self.weights, self.kv = weights or self.weights, kv or self.kv
        self.cache_tokens = None
        self.forget_cost()

    def make_portable(self, portable: bool = True) -> "Model":
        """Compute from now on with operations that give the same bits on every
        processor, if `portable`; return the model.

        Sequences must not be open. Raises ModelError on another backend than the
        native one, where torch decides the order of operations.
        """
        if portable:
            check_portable(self.name, self.capability)
            cast("NativeBackend", self.backend).make_portable()
            self.portable = portable
            self.forget_cost()
        return self

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        """Begin a sequence of at most `capacity` tokens, draft tokens included.

        `tokens`: its text so far. Returns how many leading tokens need not be read,
        because an earlier text of the same tenant began with them and left the hidden
        states of `layers`. At least one token is left to read.
        """
        return self.backend.open(id, capacity, tokens, tenant, layers)

    def give(self, id: int, material: object) -> None:
        """Set what an open sequence reads beside its text, before its first read."""
        self.backend.give(id, material)

    @property
    def cache_tokens(self) -> int | None:
        """Most tokens of keys and values held, in whole pages; None = no limit.

        A quarter of the memory that was free when the model was loaded, until it is
        set.
        """
        return None if self.backend.pool is None else self.backend.pool.limit

    @cache_tokens.setter
    def cache_tokens(self, tokens: int | None) -> None:
        if self.backend.pool is None:
            return
        if tokens is None:
            tokens = most_tokens(self.hf, self.kv)
        self.backend.pool.limit = tokens

    def close(self, id: int) -> None:
        """Free a sequence. Unknown ids are ignored."""
        self.backend.close(id)

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        """Run one forward; return the logits of the last `keep` tokens of each read."""
        return self.backend.read(reads)

    def read_hidden(
        self, reads: Sequence[Read], layers: tuple[int, ...]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        """Run `read`; return also the hidden states of every token read, concatenated
        over `layers`, in its dtype.

        Layers are numbered as in transformers: 0 = the embeddings, i = after i layers,
        the last also after the final norm. Raises ModelError for a number out of range,
        or a backend that does not expose hidden states.
        """
        # the check takes longer than the forward of a small model
        if layers not in self._checked_layers:
            self.check_hidden_states(layers)
            self._checked_layers.add(layers)
        backend = cast("ReadsHiddenStates", self.backend)
        logits, states = backend.read_hidden(reads, layers)
        return logits, states.to(self.dtype)

    def check_hidden_states(self, layers: Sequence[int]) -> ReadsHiddenStates:
        """Return the backend that exposes these hidden states, or raise ModelError."""
        count = layer_count(self.hf.config)
        if any(not 0 <= layer <= count for layer in layers):
            raise ModelError(
                f"cannot read hidden states {list(layers)}: {self.name} has states 0 "
                f"to {count}"
            )
        if not isinstance(self.backend, ReadsHiddenStates):
            raise ModelError(
                f"cannot read hidden states of {self.name}: backend "
                f"'{self.capability.backend}' does not expose them"
            )
        return self.backend

    def lm_head(
        self, hidden: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows vocab"]:
        """Return the logits of the LM head for hidden states after the final norm."""
        return self.check_hidden_states(()).lm_head(hidden)

    def embed(self, tokens: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows hidden"]:
        """Return the input embeddings of tokens."""
        embed = getattr(self.backend, "embed", None) or self.hf.get_input_embeddings()
        return embed(tokens)

    def grow(self, read: Read, ask: TreeRequest) -> GrownTree | None:
        """Run a read, then grow a tree; None where the backend is not faster at it."""
        # isinstance of a protocol takes Python 3.11 some 20 µs
        grow = getattr(self.backend, "grow", getattr(self.backend, "grow_chain", None))
        return None if grow is None else grow(read, ask)

    @property
    def draws(self) -> bool:
        """Whether the backend draws tokens and reads them without the host."""
        return hasattr(self.backend, "read_and_draw")

    def read_and_draw(
        self, reads: Sequence[Read], draws: Sequence[Draw], more: Sequence[bool]
    ) -> tuple[Float[Tensor, "texts vocab"], list[int]]:
        """Run reads of committed tokens; return the logits and the drawn tokens.

        `more`: the texts that go on, whose next forward begins.
        """
        return cast("Any", self.backend).read_and_draw(reads, draws, more)

    def move(self, id: int, source: list[int], start: int) -> None:
        """Make an accepted branch contiguous: position source[i] moves to start + i."""
        self.backend.move(id, source, start)

    def second(self) -> "Model":
        """Return a model of the same weights with its own keys and values."""
        sources = None
        if self.seq2seq is not None:
            from foreword.model.encoder import EncoderMemory

            sources = self.backend.memory(EncoderMemory)
        with nullcontext() if sources is None else sources.own_attention():
            return Model(self.hf, self.name, known=self.capability, swaps=[])


def measure(model: Model) -> dict[int, float]:
    """Return the measured seconds of a forward by number of rows."""
    return dict(model.cost.seconds)
