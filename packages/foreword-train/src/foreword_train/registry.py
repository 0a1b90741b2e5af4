"""Losses, and options of every drafter that `foreword train` can train, without
importing torch.

The only place outside a method's own files that names a method for training.
"""

from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from foreword.entries import Registry

if TYPE_CHECKING:
    from foreword_train.task import TrainContext, TrainTask


def _option(
    default: Any, help: str, metavar: str = "N", least: float | None = None
) -> Any:
    return field(
        default=default, metadata={"help": help, "metavar": metavar, "least": least}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Options of one trainable drafter; a resumed run must have the same ones."""

    method: ClassVar[str]
    """The method that serves the drafter."""
    command: ClassVar[str] = ""
    """Name of the command, where it is not the method's."""
    is_target: ClassVar[bool] = False
    """What is trained is the target itself, which is its own drafter then."""
    summary: ClassVar[str]
    """One line for `foreword train --help`."""
    example: ClassVar[str]
    """Options that suit a first run."""
    task: ClassVar[str]
    """Import path, `module:class`, of its task; constructed with (context, options)."""
    pack: ClassVar[str | None]
    """Import path, `module:function`, of its export to other engines, or None."""
    gguf: ClassVar[str | None] = None
    """Import path of its export to llama.cpp, or None."""
    seq2seq: ClassVar[bool] = False
    """It can be trained for an encoder-decoder."""

    def begin(self, context: "TrainContext") -> "TrainTask":
        """Create the trainable drafter, or raise InvalidRequest or ModelError."""
        module, _, name = self.task.partition(":")
        return getattr(import_module(module), name)(context, self)

    def settings(self) -> dict[str, Any]:
        """Return all options by name."""
        return {"method": self.method} | {
            option.name: getattr(self, option.name) for option in fields(self)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LmOptions(TrainOptions):
    """Options of a separate draft model with the target's tokenizer."""

    method = "lm"
    summary = "Distil a small language model from the target's next-token distribution."
    example = "--layers 1 --hidden 192"
    task = "foreword_train.methods.lm:Distillation"
    pack = "foreword_train.methods.lm:pack"
    gguf = "foreword_train.methods.lm:pack"
    seq2seq = True

    draft: str | None = _option(
        None, "Initial model. Default: a new one, of the target's kind.", "MODEL"
    )
    layers: int = _option(1, "Layers of a new model.", least=1)
    encoder_layers: int | None = _option(
        None, "Encoder layers of a new encoder-decoder. Default: as layers.", least=1
    )
    hidden: int | None = _option(
        None, "Hidden size of a new model. Default: the target's.", least=1
    )
    on_policy: float = _option(
        0.0, "Share of batches written by the draft itself.", "P", least=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PardOptions(TrainOptions):
    """Options of a draft model that predicts several tokens in one forward."""

    method = "pard"
    summary = "Teach a draft model to predict several tokens in one forward, at masks."
    example = "--draft DRAFT_MODEL --depth 8"
    task = "foreword_train.methods.pard:MaskTraining"
    pack = "foreword_train.methods.pard:pack"

    draft: str | None = _option(
        None, "Draft model to begin from. Default: the bundled one.", "MODEL"
    )
    depth: int = _option(8, "Tokens predicted in one forward.", least=1)
    keep: float = _option(
        0.7, "Share of the places of a depth that the next one keeps.", "P", least=0
    )
    least: float = _option(
        0.2, "Smallest share of the places that a depth keeps.", "P", least=0
    )
    mask: int | None = _option(
        None,
        "Mask token. Default: the draft's, an unused one, or padding.",
        "ID",
        least=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleOptions(TrainOptions):
    """Options of an EAGLE-3 head: one layer that reads the target's hidden states."""

    method = "eagle"
    summary = "Train an EAGLE-3 head: one layer on the target's hidden states."
    example = "--steps 4000 --unroll 5"
    task = "foreword_train.methods.eagle:HeadTraining"
    pack = "foreword.draft.heads.eagle_checkpoint:pack"
    gguf = "foreword_train.methods.eagle:pack_gguf"
    seq2seq = True

    draft: str | None = _option(None, "Initial head. Default: a new one.", "HEAD")
    unroll: int = _option(5, "Draft steps unrolled in training.", least=1)
    states: str | None = _option(
        None,
        "Hidden states to read, like 2,4,5. Default: early, middle, late.",
        "I,J,K",
    )
    draft_vocab: int = _option(
        32000, "Draft vocabulary size, most frequent tokens first.", least=2
    )
    intermediate: int | None = _option(
        None, "Intermediate size of the MLP. Default: the target's.", least=1
    )
    feature: float = _option(
        0.0, "Weight of the feature regression loss (10 in EAGLE-1).", "X", least=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpOptions(TrainOptions):
    """Options of a layer of multi-token prediction, for a target that has none."""

    method = "mtp"
    summary = (
        "Train a layer of multi-token prediction: a decoder layer of the target's kind."
    )
    example = "--steps 4000 --unroll 4"
    task = "foreword_train.methods.mtp:MtpTask"
    pack = None

    draft: str | None = _option(
        None,
        "Initial layer. Default: a new one; the target's own if it has one.",
        "MTP",
    )
    unroll: int = _option(4, "Draft steps unrolled in training.", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedBlock(TrainOptions):
    """Options of heads that fill in a block of masked tokens in one forward."""

    draft: str | None = _option(None, "Initial head. Default: a new one.", "HEAD")
    layers: int = _option(2, "Layers, and target states read, of a new head.", least=1)
    block: int = _option(8, "Rows of a block: last token and masks.", least=2)
    mask: int | None = _option(
        None,
        "Mask token. Default: the tokenizer's mask or padding token.",
        "ID",
        least=0,
    )
    anchors: int = _option(
        64, "Anchors in every block of records, drawn anew.", least=1
    )
    decay: float = _option(
        4.0, "Loss weight exp(-(k-1)/decay) of position k; 0: by reach.", "X", least=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashOptions(MaskedBlock):
    """Options of a head that predicts each token of a block on its own."""

    method = "dflash"
    summary = (
        "Train a head that predicts a block of tokens at once, from the target's "
        "hidden states."
    )
    example = "--layers 2 --block 8"
    task = "foreword_train.methods.dflash:DFlashTask"
    pack = "foreword.draft.heads.dflash:DFlashHead.pack"
    gguf = "foreword_train.methods.masked:pack_gguf"


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkOptions(MaskedBlock):
    """Options of a block head that is conditioned on the previous token."""

    method = "dspark"
    summary = (
        "Train a head that predicts a block of tokens, each conditioned on the one "
        "before it."
    )
    example = "--layers 2 --block 7 --loss kl-l1"
    task = "foreword_train.methods.dspark:DSparkTask"
    pack = "foreword.draft.heads.dspark:DSparkHead.pack"
    gguf = "foreword_train.methods.masked:pack_gguf"

    rank: int = _option(64, "Rank of the bigram table.", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaOptions(TrainOptions):
    """Options of heads on the last hidden state, each for a token further ahead."""

    method = "medusa"
    summary = (
        "Train heads that predict one token each, from the target's last hidden state."
    )
    example = "--heads 4"
    task = "foreword_train.methods.medusa:MedusaTask"
    pack = None
    seq2seq = True

    draft: str | None = _option(None, "Initial heads. Default: new ones.", "HEADS")
    heads: int = _option(4, "Number of heads, one draft token each.", least=1)
    layers: int = _option(1, "Residual layers of each head.", least=1)
    own: bool = _option(
        False, "Separate output matrices, as large as the target's.", ""
    )
    anchors: int = _option(
        128, "Anchors in every block of records, drawn anew.", least=1
    )
    decay: float = _option(
        4.48, "Loss weight exp(-(k-1)/decay) of position k; 0: by reach.", "X", least=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyExitOptions(TrainOptions):
    """Options of a target that learns to predict after its first layers."""

    method = "layers"
    command = "early-exit"
    is_target = True
    summary = "Train the target itself to predict after its first layers (LayerSkip)."
    example = "--steps 2000 --lr 2e-4"
    task = "foreword_train.methods.early_exit:EarlyExitTask"
    pack = None

    exits: str | None = _option(
        None, "Layers to exit after, like 2,4. Default: every one.", "I,J,K"
    )
    dropout: float = _option(
        0.1, "Dropout of the last layer; earlier ones have less.", "P", least=0
    )
    ramp: int = _option(
        1000, "Forwards until layer dropout is at its full rate.", least=1
    )
    scale: float = _option(1.0, "Weight of the loss at an exit.", "X", least=0)


TRAIN_OPTIONS: tuple[type[TrainOptions], ...] = (
    LmOptions,
    PardOptions,
    EagleOptions,
    MtpOptions,
    DFlashOptions,
    DSparkOptions,
    MedusaOptions,
    EarlyExitOptions,
)
"""Everything that `foreword train` can train."""

LOSSES: Registry[Any] = Registry(
    "loss",
    "foreword.losses",
    "collections.abc:Callable",
    {
        "forward-kl": "foreword_train.losses:forward_kl",
        "reverse-kl": "foreword_train.losses:reverse_kl",
        "tv": "foreword_train.losses:total_variation",
        "log-acceptance": "foreword_train.losses:log_acceptance",
        "hybrid": "foreword_train.losses:hybrid",
        "kl-l1": "foreword_train.losses:divergence_and_distance",
        "cross-entropy": "foreword_train.losses:cross_entropy",
    },
)
