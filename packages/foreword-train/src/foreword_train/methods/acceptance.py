"""Training of the acceptance model: acceptance probability from the draft's
distribution alone, and its calibration.

learned.py uses the result.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from foreword import bundled
from foreword.checks import whole
from foreword.errors import InvalidRequest
from foreword.files import atomic_file, check_creatable, room
from foreword.model import HFModel, check_same, load_tokenizer
from foreword.native.cpu import fast_bfloat16
from foreword_train.data.packing import Block, Encoder, Packer, stack
from foreword_train.data.records import Record, read, split
from foreword_train.job import eos
from foreword_train.learned import FILE, AcceptanceModel, LogisticModel, features
from foreword_train.losses import agreement, overlap
from foreword_train.methods.lm import load

HEATS = (0.3, 0.5, 0.7, 1.0, 1.3)
"""Temperatures at which sampled draft tokens are measured, for all between too."""
RIDGE = 1e-4
"""L2 penalty. Keeps weights small where the data does not determine them."""
BINS = 15
"""Bins of the expected calibration error."""
PIECES = 20
"""Blocks between two progress notes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Models, data and output folder of one training of the acceptance model."""

    data: tuple[Path, ...]
    """JSON lines; see foreword_train.data.records."""
    out: Path
    target: str | None = None
    """Folder or hub id; None = the bundled target."""
    draft: str | None = None
    """Folder or hub id; None = the bundled draft."""
    tokens: int = 40_000
    """Learnt tokens that are read, about; a fifth as many are held out."""
    length: int = 512
    """Tokens in a block."""
    seed: int = 0
    trust_remote_code: bool = False
    """Allow code of the models' own folders to run."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Features of the draft's distributions, and acceptance probabilities from them."""

    features: Float[Tensor, "rows features"]
    kept: Float[Tensor, "rows"]

    def fit(self) -> LogisticModel:
        """Fit a logistic regression by maximum likelihood, on shares (Cox 1958)."""
        mean = self.features.mean(0)
        spread = self.features.std(0).clamp_min(1e-3)
        scaled = (self.features - mean) / spread
        weights = torch.zeros(scaled.shape[1] + 1, requires_grad=True)
        search = torch.optim.LBFGS(
            [weights], max_iter=200, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            search.zero_grad()
            logits = scaled @ weights[:-1] + weights[-1]
            total = (
                F.binary_cross_entropy_with_logits(logits, self.kept)
                + RIDGE * weights[:-1].square().sum()
            )
            total.backward()
            return total

        search.step(loss)
        values = (mean, spread, weights.detach())
        return LogisticModel(*(tuple(one.tolist()) for one in values))

    def evaluate(self, model: LogisticModel) -> dict[str, float]:
        """Return the calibration error, in bins of equal size, and Brier scores."""
        predicted = model.probability(self.features)
        order = predicted.argsort()
        wrong = predicted - self.kept
        errors = [float(wrong[part].sum().abs()) for part in order.chunk(BINS)]
        return {
            "tokens": float(len(order)),
            "kept": float(self.kept.mean()),
            "calibration_error": sum(errors) / len(order),
            "brier": float(wrong.square().mean()),
            "brier_of_a_constant": float(self.kept.var(correction=0)),
        }


def run(
    request: Asked, note: Callable[[str], None] = lambda _: None
) -> AcceptanceModel:
    """Read data with both models, fit the acceptance model, evaluate it on held-out
    records, and write it.

    Raises InvalidRequest, ModelError or VocabularyMismatch before any reading where the
    settings do not fit.
    """
    _check(request)
    source, draft = request.target or bundled.target(), request.draft or bundled.draft()
    records = read(list(request.data))
    trusted = request.trust_remote_code
    tokenizer = load_tokenizer(source, trust_remote_code=trusted)
    check_same(tokenizer, load_tokenizer(draft, trust_remote_code=trusted))
    dtype = torch.bfloat16 if fast_bfloat16() else torch.float32
    pair = (
        load(source, dtype, trusted=trusted).eval(),
        load(draft, dtype, trusted=trusted).eval(),
    )
    encode = Encoder(tokenizer, eos(pair[0], tokenizer))
    learnt, held_out = split(records, max(1, len(records) // 6), request.seed)
    if not learnt or not held_out:
        raise InvalidRequest(
            f"cannot hold out records for calibration: {len(records)} records are too "
            "few. Give more data"
        )
    note(f"{len(learnt):,} records to train on, {len(held_out):,} held out")

    def samples(some: Sequence[Record], tokens: int) -> dict[float, Samples]:
        packer = Packer(encode, some, request.length, request.seed)
        return collect(pair, packer, tokens, lambda n: note(f"{n:,} tokens"))

    training = samples(learnt, request.tokens)
    test = samples(held_out, max(1000, request.tokens // 5))
    model = _fitted(training, test, {"target": request.target, "draft": request.draft})
    save(model, request.out)
    return model


def save(model: AcceptanceModel, folder: Path) -> None:
    """Write the model atomically to a folder. Raises DiskError."""
    text = json.dumps(asdict(model), indent=1) + "\n"
    with room(folder / FILE):
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / FILE) as partial:
            partial.write_text(text, encoding="utf-8")


def _check(request: Asked) -> None:
    """Raise InvalidRequest for settings that are wrong whatever the models are."""
    for name, least in (("tokens", 1000), ("length", 2)):
        whole(least)(name, getattr(request, name))
    check_creatable(request.out)
    if (request.out / FILE).exists():
        raise InvalidRequest(
            f"cannot write {request.out / FILE}: it exists already. Remove it or "
            "choose another folder"
        )
    if request.target is not None and request.draft is None:
        raise InvalidRequest(
            "cannot train an acceptance model without a draft model: give "
            "draft='folder or hub id'"
        )


def _fitted(
    training: dict[float, Samples], test: dict[float, Samples], names: dict[str, Any]
) -> AcceptanceModel:
    """Fit one model for temperature 0 and one for all others, and evaluate both."""
    sampled = concatenate([training[heat] for heat in HEATS])
    models = {0.0: training[0.0].fit()} | dict.fromkeys(HEATS, sampled.fit())
    figures = {f"{heat:g}": rows.evaluate(models[heat]) for heat, rows in test.items()}
    about = names | {"tokens": len(training[0.0].kept), "held_out": figures}
    return AcceptanceModel(models[0.0], models[1.0], about)


@torch.no_grad()
def collect(
    pair: tuple[HFModel, HFModel],
    packer: Packer,
    tokens: int,
    note: Callable[[int], None],
) -> dict[float, Samples]:
    """Collect samples by temperature where about `tokens` learnt tokens come next."""
    parts: dict[float, list[Samples]] = {heat: [] for heat in (0.0, *HEATS)}
    count = 0
    for number, block in enumerate(packer.all(1 + 8 * tokens // packer.length)):
        target, draft = _logits(pair, stack([block]))
        for heat, rows in parts.items():
            p, q = (logits / (heat or 1.0) for logits in (target, draft))
            labels = overlap(p, q) if heat else agreement(p, q)
            rows.append(Samples(features(q, heat), labels.float()))
        count += len(target)
        if number % PIECES == PIECES - 1:
            note(count)
        if count >= tokens:
            break
    return {heat: concatenate(rows) for heat, rows in parts.items()}


def concatenate(parts: Sequence[Samples]) -> Samples:
    """Return all rows of all parts."""
    return Samples(
        torch.cat([part.features for part in parts]),
        torch.cat([part.kept for part in parts]),
    )


def _logits(pair: tuple[HFModel, HFModel], block: Block) -> tuple[Tensor, Tensor]:
    """Return both models' logits before learnt tokens, cut to their shared tokens."""
    inputs: dict[str, Any] = {
        "input_ids": block.tokens,
        "position_ids": block.positions,
        "use_cache": False,
    }
    target, draft = (
        model(**inputs).logits[:, :-1][block.learnt[:, 1:]].float() for model in pair
    )
    vocab = min(target.shape[-1], draft.shape[-1])
    return target[:, :vocab], draft[:, :vocab]
