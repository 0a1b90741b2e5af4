"""A Hugging Face causal model that can be scored: loaded, made fast where it stands, and driven the best exact way.

Every contact with transformers' models is in this folder. Knows nothing about drafting, rules or text.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from collections.abc import Sequence as List
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import ForewordError, ModelError, words
from foreword.model.causal import check_causal
from foreword.model.config import read_config, unloadable
from foreword.model.cost import Cost, known
from foreword.model.driver import Hearing, Mode
from foreword.model.linear import Swap, swap_out
from foreword.model.loading import load_weights
from foreword.model.native import usual
from foreword.model.plan import Read
from foreword.model.probe import NATIVE, Capability, choose, drive, known_way
from foreword.native.openmp import one_thread
from foreword.native.tree import Ask, Grown

NO_LIMIT = 2**31
"""Tokens. The context of a model whose config names none."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Model:
    """A causal language model and the memory of the sequences it is reading.

    Use `load` for a checkpoint, the constructor for a model that is already in memory and may be changed in place (it
    does not work without us afterwards), and `borrow` for one that belongs to somebody else.

    `parameters` is how many numbers the checkpoint holds, a tied one counted once.
    """

    def __init__(
        self,
        hf: PreTrainedModel,
        name: str = "",
        *,
        known: Capability | None = None,
        swaps: list[Swap] | None = None,
        way: str | None = None,
    ) -> None:
        if getattr(hf.config, "is_encoder_decoder", False):
            raise ModelError(f"{name or type(hf).__name__} is an encoder-decoder; Foreword drives decoder-only models")
        self.hf = hf.eval()
        self.name = name or hf.config.name_or_path or type(hf).__name__
        # Counted now: a driver may keep the weights in a form of its own and drop these.
        self.parameters: int = sum(parameter.numel() for parameter in hf.parameters())
        replaced: list[Swap] = [] if swaps is None else swaps
        self.trust_remote_code = False
        """Whether code from the folder of a draft that is loaded for it may run."""
        if known is None:
            check_causal(hf, self.name)
            self.driver, self.capability = choose(hf, replaced, owned=swaps is None, only=known_way(way))
        else:
            self.driver, self.capability = drive(hf, known, replaced), known
        self.device: torch.device = next(hf.parameters()).device
        self._cost: Cost | None = None
        self._asked_for: set[tuple[int, ...]] = set()
        """Hidden states that were found to be there."""
        config = hf.config.get_text_config()
        self.vocab: int = config.vocab_size
        self.context: int = getattr(config, "max_position_embeddings", None) or NO_LIMIT
        if known is None and swaps is None and (odd := _ending(hf)[1]):
            warnings.warn(
                f"ids {odd} that should end texts are none of the {self.vocab} tokens of {self.name}; they are ignored",
                stacklevel=3,
            )
        if known is None and way is None and self.mode is not Mode.TREE:
            warnings.warn(f"{self.name} runs in mode '{self.mode.value}'. {self.capability.reason}", stacklevel=3)

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        dtype: str | torch.dtype = "auto",
        device: str = "auto",
        way: str | None = None,
        trust_remote_code: bool = False,
    ) -> Model:
        """Load a checkpoint from a folder or the hub; of a model that sees as well, its text is read.

        `dtype="auto"` is bfloat16 on a CPU that multiplies it in hardware, and on any other if C of ours reads the
        model there, else float32; on an accelerator it is the checkpoint's own. `way` is how it must be driven,
        "native", "graph", "pool", "cache" or "plain"; None takes the best that gives the model's own scores
        (docs/how-it-works.md). `trust_remote_code` lets Python code from the checkpoint's own folder run, and from that
        of a draft loaded for it; else such a checkpoint is refused. Raises ModelError when there is no such model, its
        weights are incomplete or no numbers, or it cannot be driven so.
        """
        where, way = options(dtype=dtype, device=device, way=way)
        config = read_config(source, trust_remote_code=trust_remote_code)
        first, *others = _dtypes(dtype, where, config.architectures if way in (None, NATIVE) else None)
        hf = load_weights(source, config, first, trust_remote_code=trust_remote_code)
        try:
            nn.Module.to(hf, where)
            model = cls(hf, str(source), way=way)
        except ForewordError:
            raise
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise ModelError(
                f"{source} does not fit on {where}: {error}. Try a smaller dtype or another device"
            ) from error
        except Exception as error:
            raise unloadable(source, error, {}) from error
        model.trust_remote_code = trust_remote_code
        if others and model.capability.way != NATIVE:
            del hf, model  # or both would be in memory
            return cls.load(source, dtype=others[0], device=device, way=way, trust_remote_code=trust_remote_code)
        return model

    @property
    def mode(self) -> Mode:
        """How guesses can be scored."""
        return self.capability.mode

    @property
    def dtype(self) -> torch.dtype:
        return self.hf.dtype

    @property
    def eos(self) -> frozenset[int]:
        """Ids that end a text, as the checkpoint's generation settings say."""
        return _ending(self.hf)[0]

    @property
    def cost(self) -> Cost:
        """`cost(nodes, rows, context)` is seconds of a forward; measured once on a machine, and kept on its disk."""
        if self._cost is None:
            config = self.hf.config.get_text_config().to_dict()
            about = {
                "model": type(self.hf).__name__,
                "sizes": {name: size for name, size in config.items() if type(size) is int},
                "parameters": self.parameters,
                "dtype": str(self.dtype),
                "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type,
                "way": self.capability.way,
            }
            self._cost = known(self, about)
        return self._cost

    def steady(self) -> AbstractContextManager[None]:
        """Between its forwards torch leaves the cores alone that they need, where they are not torch's own."""
        return one_thread() if self.capability.way == NATIVE else nullcontext()

    def lighten(self) -> None:
        """Hold the weights in 8 bits where that makes forwards faster: good for guesses; the scores are others then.

        They cannot be read back afterwards, to learn or to be saved.
        """
        getattr(self.driver, "lighten", lambda: None)()

    def open(self, id: int, capacity: int) -> None:
        """Make room for a sequence of at most `capacity` tokens, guesses included."""
        self.driver.open(id, capacity)

    def close(self, id: int) -> None:
        """Forget a sequence. Unknown ids are ignored."""
        self.driver.close(id)

    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        """One forward over what each sequence adds; returns the logits of the last `keep` tokens of each, in order."""
        return self.driver.read(reads)

    def hear(
        self, reads: List[Read], layers: tuple[int, ...]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        """`read`, and the hidden states of every token read, those of all `layers` side by side, any float dtype.

        Layers are numbered as transformers numbers hidden states: 0 = the embeddings, i = after i layers, and the last
        after the final norm too. Raises ModelError for numbers that are none, or a way of driving that cannot listen.
        """
        if layers not in self._asked_for:  # which takes longer than the forward of a small model
            self.hears(layers)
            self._asked_for.add(layers)
        return cast("Hearing", self.driver).hear(reads, layers)

    def hears(self, layers: List[int]) -> Hearing:
        """Who reports these states. Raises ModelError for states that are none, or a driver that reports none."""
        count = self.hf.config.get_text_config().num_hidden_layers
        if any(not 0 <= layer <= count for layer in layers):
            raise ModelError(f"{self.name} has hidden states 0 to {count}, got {list(layers)}")
        if not isinstance(self.driver, Hearing):
            raise ModelError(f"{self.name} is driven the way '{self.capability.way}', which lets nobody listen")
        return self.driver

    def speak(self, hidden: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows vocab"]:
        """What the model's own head says of hidden states that are normed already."""
        return self.hears(()).speak(hidden)

    def embed(self, tokens: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows hidden"]:
        """The model's own embeddings of tokens."""
        embed = getattr(self.driver, "embed", None) or self.hf.get_input_embeddings()
        return embed(tokens)

    def grow(self, read: Read, ask: Ask) -> Grown | None:
        """Read, then grow a tree of guesses; None where the driver cannot do that faster than its caller."""
        grow = getattr(self.driver, "grow", None)  # to compare with a protocol takes Python 3.11 some 20 µs
        return None if grow is None else grow(read, ask)

    def move(self, id: int, source: list[int], start: int) -> None:
        """Make the keys of an accepted branch contiguous: position source[i] moves to start + i."""
        self.driver.move(id, source, start)


@contextmanager
def borrow(hf: PreTrainedModel, known: Capability | None = None) -> Iterator[Model]:
    """A Model over somebody else's model, which gets its attention, layers and modes back afterwards.

    `known` is what an earlier loan of a model built the same way found out; with it nothing is tried again.
    """
    implementation = hf.config._attn_implementation or "eager"
    modes = [(module, module.training) for module in hf.modules()]
    swaps: list[Swap] = []
    try:
        yield Model(hf, known=known, swaps=swaps)
    finally:
        swap_out(swaps)
        hf.set_attn_implementation(implementation)
        for module, training in modes:
            module.training = training


def options(*, dtype: str | torch.dtype, device: str, way: str | None) -> tuple[torch.device, str | None]:
    """The device and the way of these names, once all three names are known to be good; nothing is loaded for that.

    Raises ModelError for a device that is not here or a dtype that is none, InvalidRequest for a way that is none.
    """
    if dtype != "auto" and dtype not in (*DTYPES, *DTYPES.values()):
        raise ModelError(f"dtype must be 'auto' or one of {', '.join(DTYPES)}, got {dtype!r}")
    return device_named(device), known_way(way)


def device_named(device: str) -> torch.device:
    """The device of this name. Raises ModelError for one that is not here."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(
            f"device {device!r} cannot be used here: {words(error)}. Use 'auto', 'cpu' or one that this machine has"
        ) from error
    return found


def _dtypes(dtype: str | torch.dtype, device: torch.device, kinds: List[str] | None) -> List[Any]:
    """What to load such a model in: of two the first, if C of ours reads it then."""
    if dtype == "auto":
        return usual(kinds) if device.type == "cpu" else ["auto"]
    return [DTYPES[dtype] if isinstance(dtype, str) else dtype]


def _ending(hf: PreTrainedModel) -> tuple[frozenset[int], list[Any]]:
    """Ids that end a text, as the generation settings or the config say, and those said that are no tokens."""
    said = (hf.generation_config or hf.config).eos_token_id
    ids = list(said) if isinstance(said, list | tuple | set | frozenset) else [] if said is None else [said]
    vocab = hf.config.get_text_config().vocab_size
    fine = [token for token in ids if type(token) is int and 0 <= token < vocab]
    return frozenset(fine), [token for token in ids if token not in fine]
