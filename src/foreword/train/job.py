"""`foreword train`: files in, a folder with a trained draft out; the order of things for whatever is trained.

Knows data and the loop by name; knows nothing about what is trained, gradients or figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from foreword import family
from foreword.disk import filling, makeable
from foreword.errors import InvalidRequest
from foreword.model import HFModel, Tokenizer, load_tokenizer
from foreword.model.linear import fast_bfloat16
from foreword.params import whole
from foreword.train.data import Record, read, split
from foreword.train.devices import Devices, ManyDevices, OneDevice
from foreword.train.figures import Report
from foreword.train.lm import load
from foreword.train.log import Row
from foreword.train.losses import loss
from foreword.train.pack import Encoder, Packer, Piece
from foreword.train.pupil import Setting
from foreword.train.report import Questions, report
from foreword.train.students import SmallModel, Student
from foreword.train.trainer import Recipe, Trainer

HELD_OUT_BLOCKS = 32
"""Blocks of held-out data that every measurement reads, at most."""
COUNTED = 20_000
"""Records in which tokens are counted, for those who learn a part of the vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Something to train: for which target, with what, to where."""

    student: Student = field(default_factory=SmallModel)
    """What is trained."""
    target: str | None = None
    """Folder or hub id; None = the family that ships."""
    data: tuple[Path, ...]
    """JSON lines; see foreword.train.data."""
    out: Path
    """Gets the draft, checkpoints while it is made, the log and the report."""
    loss: str = "hybrid"
    temperature: float = 1.0
    """What both laws are taken at."""
    length: int = 512
    """Tokens in a block."""
    held_out: int = 256
    """Records, about, that are measured on and not learnt."""
    device: str = "auto"
    bf16: bool | None = None
    """Multiply in bfloat16; None = where that is fast."""
    many: bool = False
    """One of several processes that train together."""
    recipe: Recipe = field(default_factory=Recipe)
    questions: Questions = field(default_factory=Questions)
    """What the report measures."""

    def settings(self, records: list[Record]) -> dict[str, Any]:
        """What must be the same for a run to go on; the recipe adds its own."""
        names = ("target", "loss", "temperature", "length", "held_out")
        digest = blake2b(digest_size=12)
        for record in records:
            digest.update(repr(record).encode())
        return self.student.settings() | {name: getattr(self, name) for name in names} | {"data": digest.hexdigest()}


def run(
    job: Job,
    *,
    resume: bool = False,
    watch: Callable[[Row], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> Report | None:
    """Train, save the draft, measure it in the engine, write the report beside it. Returns the report.

    With `resume` an interrupted run goes on from its last checkpoint, and begins where there is none. Of several
    processes only the first reports; the others return None. Raises InvalidRequest or ModelError before any training
    when something does not fit.
    """
    whole(2)("length", job.length)
    whole(0)("held_out", job.held_out)
    chosen = loss(job.loss)
    makeable(job.out)
    records = read(list(job.data))
    learnt, held_out = split(records, job.held_out, job.recipe.seed)
    note(f"{len(learnt):,} records to learn from, {len(held_out):,} held out")
    devices = _devices(job)
    fast = _fast(devices.device)
    source = family.target() if job.target is None else job.target
    tokenizer = load_tokenizer(source)
    target = load(source, torch.bfloat16 if fast else torch.float32)
    _fits(job, target)
    encode = Encoder(tokenizer, eos(target, tokenizer))
    setting = Setting(
        source=source, target=target, tokenizer=tokenizer, eos=encode.eos, loss=chosen, temperature=job.temperature,
        length=job.length, seed=job.recipe.seed, counts=lambda: frequencies(map(encode, learnt[:COUNTED]), target),
    )  # fmt: skip
    pupil = job.student.begin(setting)
    trainer = Trainer(
        pupil,
        Packer(encode, learnt, job.length, job.recipe.seed),
        replace(job.recipe, bf16=fast if job.bf16 is None else job.bf16),
        folder=job.out,
        devices=devices,
        held_out=Packer(encode, held_out, job.length).all(HELD_OUT_BLOCKS) if held_out else [],
        settings=job.settings(records),
        watch=watch,
    )
    rows = trainer.run(resume=resume)
    if devices.rank:
        return None
    with filling(job.out):
        pupil.save(job.out)
    note("measuring the draft at its work")
    asked = [(record.source, encode.prompt(record)) for record in held_out]
    about = {"method": job.student.method, "parameters": pupil.parameters, "settings": trainer.settings}
    return report(job.target, job.out, asked, rows, questions=job.questions, **about)


def eos(target: HFModel, tokenizer: Tokenizer) -> frozenset[int]:
    """Ids that end a text, as the checkpoint's generation settings say, or the tokenizer."""
    ids = target.generation_config.eos_token_id if target.generation_config is not None else None
    ids = tokenizer.eos_token_id if ids is None else ids
    return frozenset(map(int, ids if isinstance(ids, list) else [ids] if ids is not None else []))


def frequencies(pieces: Iterable[Piece], target: HFModel) -> Int[Tensor, "vocab"]:
    """How often each token is learnt in these pieces."""
    counts = torch.zeros(target.config.get_text_config().vocab_size, dtype=torch.int64)
    for piece in pieces:
        said = torch.tensor(piece.tokens)[torch.tensor(piece.learnt, dtype=torch.bool)]
        counts += said.bincount(minlength=len(counts))
    return counts


def _fits(job: Job, target: HFModel) -> None:
    context = getattr(target.config.get_text_config(), "max_position_embeddings", None)
    if context is not None and job.length > context:
        raise InvalidRequest(f"blocks of {job.length} tokens exceed the target's context of {context}; shorten length")


def _devices(job: Job) -> Devices:
    if job.many:
        return ManyDevices(cpu=job.device == "cpu")
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    return OneDevice(torch.device(usual if job.device == "auto" else job.device))


def _fast(device: torch.device) -> bool:
    return fast_bfloat16() if device.type == "cpu" else torch.cuda.is_bf16_supported()
