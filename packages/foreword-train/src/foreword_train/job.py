"""One job of `foreword train`: from data files to a trained draft and its report."""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from foreword import bundled
from foreword.checks import whole
from foreword.errors import InvalidRequest
from foreword.files import atomic_fill, check_creatable
from foreword.model import HFModel, Tokenizer, load_tokenizer
from foreword.model.seq2seq import Seq2Seq, is_speech
from foreword.native.cpu import fast_bfloat16
from foreword_train.checkpoint import check_unused
from foreword_train.data.packing import Encoder, Packer, Piece
from foreword_train.data.pairs import PairEncoder
from foreword_train.data.records import Record, read, split
from foreword_train.devices import Devices, ManyDevices, OneDevice
from foreword_train.log import Row
from foreword_train.losses import loss
from foreword_train.methods.lm import load
from foreword_train.registry import LmOptions, TrainOptions
from foreword_train.report.measure import Questions, report
from foreword_train.report.metrics import TrainReport
from foreword_train.task import TrainContext
from foreword_train.trainer import Trainer, TrainingConfig

MOST_BLOCKS, LEAST_BLOCKS = 32, 4
"""Blocks. Most and least held-out data that one evaluation reads."""
TRAINED_BLOCKS = 4
"""Blocks trained on for each that an evaluation reads, so that it costs little."""
HELD_OUT_SHARE = 10
"""Records. At most one in so many is held out, so that a small file is trained on."""
FEW = 100
"""Records. With fewer, a draft learns them by heart, not its target."""
COUNTED = 20_000
"""Records. Sample for token counts, which select a reduced draft vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Settings of one training: drafter, target, data and output folder."""

    options: TrainOptions = field(default_factory=LmOptions)
    """Method to train, and its own options."""
    target: str | None = None
    """Folder or hub id; None = the bundled target."""
    data: tuple[Path, ...]
    """JSON lines; see foreword_train.data.records."""
    out: Path
    """Folder for the draft, checkpoints, log and report."""
    loss: str = "hybrid"
    temperature: float = 1.0
    """Temperature of both distributions in the loss."""
    length: int = 512
    """Tokens in a block."""
    held_out: int = 256
    """Records, at most, kept for evaluation; never more than a tenth of all."""
    device: str = "auto"
    trust_remote_code: bool = False
    """Allow code of the models' own folders to run."""
    bf16: bool | None = None
    """Multiply in bfloat16; None = where that is fast."""
    many: bool = False
    """True in each of several processes that train together."""
    recipe: TrainingConfig = field(default_factory=TrainingConfig)
    questions: Questions = field(default_factory=Questions)
    """Size of the report's measurement."""

    def settings(self, records: list[Record]) -> dict[str, Any]:
        """Return the settings that a resumed run must share; the recipe adds others."""
        names = ("target", "loss", "temperature", "length", "held_out")
        digest = blake2b(digest_size=12)
        for record in records:
            digest.update(repr(record).encode())
        return (
            self.options.settings()
            | {name: getattr(self, name) for name in names}
            | {"data": digest.hexdigest()}
        )


def run(
    job: Job,
    *,
    resume: bool = False,
    watch: Callable[[Row], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> TrainReport | None:
    """Train and save a draft, measure it in the engine, and write the report beside it.
    Returns the report.

    With `resume` an interrupted run continues from its last checkpoint, or starts where
    there is none. Of several processes only the first reports; the others return None.
    Raises InvalidRequest or ModelError before any training when the settings do not
    fit.
    """
    _check(job, resume=resume)
    records = read(list(job.data))
    most = min(job.held_out, len(records) // HELD_OUT_SHARE)
    learnt, held_out = split(records, most, job.recipe.seed)
    devices = _devices(job)
    _announce(job, learnt, held_out, note, first=not devices.rank)
    fast = _fast(devices.device)
    context, encode = _context(job, learnt, fast=fast)
    trainable = job.options.begin(context)
    trainer = Trainer(
        trainable,
        Packer(encode, learnt, job.length, job.recipe.seed),
        replace(job.recipe, bf16=fast if job.bf16 is None else job.bf16),
        folder=job.out,
        devices=devices,
        held_out=Packer(encode, held_out, job.length).all(evaluated(job.recipe))
        if held_out
        else [],
        settings=job.settings(records),
        watch=watch,
    )
    rows = trainer.run(resume=resume)
    if devices.rank:
        return None
    with atomic_fill(job.out):
        trainable.save(job.out)
    prompts = [(record.source, encode.prompt(record)) for record in held_out]
    return report(
        str(job.out) if job.options.is_target else job.target,
        job.out,
        prompts,
        rows,
        method=job.options.method,
        is_target=job.options.is_target,
        parameters=trainable.parameters,
        settings=trainer.settings,
        questions=job.questions,
        trusted=job.trust_remote_code,
        note=note,
    )


def _check(job: Job, *, resume: bool) -> None:
    """Raise InvalidRequest for settings that are wrong whatever the target is."""
    whole(2)("length", job.length)
    whole(0)("held_out", job.held_out)
    loss(job.loss)
    check_creatable(job.out)
    check_unused(job.out, resume=resume)


def _context(
    job: Job, learnt: list[Record], *, fast: bool
) -> tuple[TrainContext, Encoder | PairEncoder]:
    """Load the target; return the training's context, and its records' encoder."""
    source = bundled.target() if job.target is None else job.target
    trusted = job.trust_remote_code
    tokenizer = load_tokenizer(source, trust_remote_code=trusted)
    dtype = torch.bfloat16 if fast else torch.float32
    target = load(source, dtype, trusted=trusted, seq2seq=job.options.seq2seq)
    _fits(job, target)
    encode = Encoder(tokenizer, eos(target, tokenizer))
    rules = Seq2Seq.of(target, str(source))
    if rules is not None:
        encode = PairEncoder(tokenizer, encode.eos, rules.start, job.length)
    context = TrainContext(
        source=source,
        target=target,
        tokenizer=tokenizer,
        eos=encode.eos,
        loss=loss(job.loss),
        temperature=job.temperature,
        length=job.length,
        seed=job.recipe.seed,
        trusted=trusted,
        counts=lambda: frequencies(map(encode, learnt[:COUNTED]), target),
    )
    return context, encode


def eos(target: HFModel, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the end-of-text ids of the generation config, else of the tokenizer."""
    ids = (
        target.generation_config.eos_token_id
        if target.generation_config is not None
        else None
    )
    ids = tokenizer.eos_token_id if ids is None else ids
    return frozenset(
        map(int, ids if isinstance(ids, list) else [ids] if ids is not None else [])
    )


def evaluated(recipe: TrainingConfig) -> int:
    """Return the held-out blocks that each evaluation of a training reads."""
    # before the first step, and after the last one
    evaluations = 2 + recipe.steps // recipe.evaluate
    trained = recipe.steps * recipe.batch * recipe.accumulate
    return min(MOST_BLOCKS, max(LEAST_BLOCKS, trained // TRAINED_BLOCKS // evaluations))


def frequencies(pieces: Iterable[Piece], target: HFModel) -> Int[Tensor, "vocab"]:
    """Count how often each token is a training target in these pieces."""
    counts = torch.zeros(target.config.get_text_config().vocab_size, dtype=torch.int64)
    for piece in pieces:
        learnt = torch.tensor(piece.tokens)[
            torch.tensor(piece.learnt, dtype=torch.bool)
        ]
        counts += learnt.bincount(minlength=len(counts))
    return counts


def _announce(
    job: Job,
    learnt: list[Record],
    held_out: list[Record],
    note: Callable[[str], None],
    *,
    first: bool,
) -> None:
    """Say what is trained on and measured; the first process warns of few records."""
    note(f"{len(learnt):,} records to train on, {len(held_out):,} held out")
    answered = min(len(held_out), job.questions.most)
    if answered:
        note(
            f"after the training, answers to at most {answered} held-out prompts are "
            "measured"
        )
    if first and len(learnt) < FEW:
        warnings.warn(
            f"{len(learnt)} records to train on are few: with fewer than {FEW}, a "
            "draft learns them by heart and "
            "predicts other text poorly. Add records",
            stacklevel=3,
        )


def _fits(job: Job, target: HFModel) -> None:
    if is_speech(target):
        raise InvalidRequest(
            f"cannot train a draft for {job.target}: it reads sound, and records are "
            "text. Use a target that reads text"
        )
    limit = getattr(target.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and job.length > limit:
        raise InvalidRequest(
            f"cannot train on blocks of {job.length} tokens: they exceed the target's "
            f"context of {limit}. "
            "Lower 'length'"
        )


def _devices(job: Job) -> Devices:
    if job.many:
        return ManyDevices(cpu=job.device == "cpu")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    return OneDevice(torch.device(default if job.device == "auto" else job.device))


def _fast(device: torch.device) -> bool:
    return fast_bfloat16() if device.type == "cpu" else torch.cuda.is_bf16_supported()
