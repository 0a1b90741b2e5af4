"""What can be trained, and what can be wished of each. Light: the command line reads it before it loads torch.

The only place outside a method's own files that names one for training; knows nothing about how any is trained.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from foreword.train.pupil import Pupil, Setting


def _wish(default: Any, help: str, metavar: str = "N", least: float | None = None) -> Any:
    return field(default=default, metadata={"help": help, "metavar": metavar, "least": least})


@dataclass(frozen=True, slots=True, kw_only=True)
class Student:
    """Options of something that can be trained; they must be the same when a run goes on."""

    method: ClassVar[str]
    """The way to guess that serves it."""
    summary: ClassVar[str]
    """One line for `foreword train --help`."""
    example: ClassVar[str]
    """The options that a good first try has."""
    task: ClassVar[str]
    """Where its task is, made with (setting, student)."""
    pack: ClassVar[str | None]
    """Where it is packed for other engines; None where none of them serves it."""

    def begin(self, setting: Setting) -> Pupil:
        """Make it, with what it starts from. Raises InvalidRequest or ModelError where it does not fit the target."""
        module, _, name = self.task.partition(":")
        return getattr(import_module(module), name)(setting, self)

    def settings(self) -> dict[str, Any]:
        """All options by name."""
        return {"method": self.method} | {part.name: getattr(self, part.name) for part in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallModel(Student):
    """A model of its own that knows the target's tokens."""

    method = "lm"
    summary = "Distil a small language model: it learns the law of the target's next token."
    example = "--layers 1 --hidden 192"
    task = "foreword.train.lm:Distillation"
    pack = "foreword.train.lm:pack"

    draft: str | None = _wish(None, "Begin with this model. Default: a new one, of the target's kind.", "MODEL")
    layers: int = _wish(1, "Layers of a new model.", least=1)
    hidden: int | None = _wish(None, "Its hidden size. Default: the target's.", least=1)
    on_policy: float = _wish(0.0, "Share of batches that the draft writes itself.", "P", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleStudent(Student):
    """One layer that reads the target's hidden states."""

    method = "eagle"
    summary = "Train an EAGLE-3 head: one layer that goes on from the target's own thoughts."
    example = "--steps 4000 --unroll 5"
    task = "foreword.train.eagle:HeadTraining"
    pack = "foreword.draft.eagle_files:pack"

    draft: str | None = _wish(None, "Begin with this head. Default: a new one.", "HEAD")
    unroll: int = _wish(5, "Guesses in a row that it learns to make.", least=1)
    states: str | None = _wish(None, "Hidden states it reads, like 2,4,5. Default: early, middle, late.", "I,J,K")
    draft_vocab: int = _wish(32000, "Tokens that it can guess, the most frequent of the data.", least=2)
    intermediate: int | None = _wish(None, "Width of its MLP. Default: the target's.", least=1)
    feature: float = _wish(0.0, "Weight of being unlike the target's own states; in EAGLE-1 10.", "X", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedBlock(Student):
    """Heads that fill in a block of masked tokens in one forward."""

    draft: str | None = _wish(None, "Begin with this head. Default: a new one.", "HEAD")
    layers: int = _wish(2, "Layers of a new head, which hears the target in as many places.", least=1)
    block: int = _wish(8, "Rows of its block, the last token and masks.", least=2)
    mask: int | None = _wish(None, "Token that masks. Default: the tokenizer's, or what pads.", "ID", least=0)
    anchors: int = _wish(64, "Places to guess from in every block of records, drawn anew.", least=1)
    decay: float = _wish(4.0, "Guess k weighs exp(-(k-1)/decay); 0 weighs by what hangs on it.", "X", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashStudent(MaskedBlock):
    """One that guesses each token as if it knew none of the others."""

    method = "dflash"
    summary = "Train a head that foresees a block of tokens at once, from the target's hidden states."
    example = "--layers 2 --block 8"
    task = "foreword.train.dflash:DFlashTask"
    pack = "foreword.draft.dflash:pack"


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkStudent(MaskedBlock):
    """One whose guesses follow on each other."""

    method = "dspark"
    summary = "Train a head that foresees a block of tokens, each bettered by the one before it."
    example = "--layers 2 --block 7 --loss kl-l1"
    task = "foreword.train.dspark:DSparkTask"
    pack = "foreword.draft.dspark:pack"

    rank: int = _wish(64, "Numbers through which the token before speaks.", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaStudent(Student):
    """Heads on the last hidden state, each for a token further ahead."""

    method = "medusa"
    summary = "Train heads that foresee a token each, from the target's last hidden state."
    example = "--heads 4"
    task = "foreword.train.medusa:MedusaTask"
    pack = None

    draft: str | None = _wish(None, "Begin with these heads. Default: new ones.", "HEADS")
    heads: int = _wish(4, "How many; each makes a guess.", least=1)
    layers: int = _wish(1, "Residual layers of each.", least=1)
    own: bool = _wish(False, "Each gets an output matrix of its own, as large as the target's.", "")
    anchors: int = _wish(128, "Places to guess from in every block of records, drawn anew.", least=1)
    decay: float = _wish(
        4.48, "Guess k weighs exp(-(k-1)/decay), here 0.8^(k-1); 0: by what hangs on it.", "X", least=0
    )


STUDENTS: tuple[type[Student], ...] = (SmallModel, EagleStudent, DFlashStudent, DSparkStudent, MedusaStudent)
"""Everything that `foreword train` can train."""
