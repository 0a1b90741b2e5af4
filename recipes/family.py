"""Train the bundled models: a small chat model from scratch, then its drafters on its
answers.

$ python recipes/family.py target --corpus train.jsonl.gz --eval eval.jsonl.gz --out family
$ python recipes/family.py drafters --corpus train.jsonl.gz --out family

The corpus is JSON lines: {"messages": [{"role": …, "content": …}, …]} each. Made for a
CPU with AMX: two of its cores read 4,250 tokens a second. Both commands resume where
they were stopped.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

from foreword import LLM, bundled
from foreword.errors import ModelError
from foreword_train import job
from foreword_train.checkpoint import found, save
from foreword_train.data.records import read
from foreword_train.data.regenerate import Wishes, regenerate
from foreword_train.devices import keep_freed
from foreword_train.job import Job
from foreword_train.log import Log, Row
from foreword_train.registry import (
    DSparkOptions,
    EagleOptions,
    LmOptions,
    MedusaOptions,
    TrainOptions,
)
from foreword_train.report.measure import Questions
from foreword_train.trainer import TrainingConfig

LENGTHS = (128, 256, 512)
"""Tokens.

A row has the shortest of these lengths that holds its longest record; longer records
are cut.
"""
ROWS = 4096
"""Tokens in a forward."""
POOL = 6000
"""Records packed together."""
SHORTEST = 8
"""Tokens. A row with less room than this is full."""
SIZES: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1280,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
"""26 million parameters, 52 MB."""


# ---- data: records side by side in rows; no record attends to another


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows: input tokens, next tokens (-1: not learnt), positions, and the index
    of the record in its row.
    """

    tokens: Tensor
    next: Tensor
    positions: Tensor
    record: Tensor

    @classmethod
    def of(cls, rows: list[list[list[int]]], length: int) -> Rows:
        tokens, positions = (
            torch.zeros(len(rows), length, dtype=torch.int64) for _ in range(2)
        )
        after, record = (torch.full((len(rows), length), -1) for _ in range(2))
        for row, records in enumerate(rows):
            at = 0
            for number, piece in enumerate(records):
                span = slice(at, at + len(piece) - 1)
                tokens[row, span], after[row, span] = (
                    torch.tensor(piece[:-1]),
                    torch.tensor(piece[1:]),
                )
                positions[row, span], record[row, span] = (
                    torch.arange(len(piece) - 1),
                    number,
                )
                at = span.stop
        return cls(tokens, after, positions, record)

    @property
    def bias(self) -> Tensor:
        """The bias on attention scores: 0 within a record's past, -1e4 elsewhere."""
        same = self.record[:, :, None] == self.record[:, None]
        seen = same & torch.ones(2 * self.record.shape[1:], dtype=torch.bool).tril()
        return torch.zeros(seen.shape).masked_fill_(~seen, -1e4)[:, None].bfloat16()


def encoded(corpus: Path, tokenizer: Any) -> list[list[int]]:
    """Return the tokens of each record as the chat template renders it; all turns are
    learnt.
    """
    with gzip.open(corpus, "rt", encoding="utf-8") as lines:
        texts = [
            tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False)
            for line in lines
        ]
    pieces = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return [piece[: LENGTHS[-1] + 1] for piece in pieces]


def dealt(pieces: list[list[int]], seed: int) -> Iterator[Rows]:
    """Yield one shuffled epoch.

    Each record of a pool, longest first, goes to the fullest row with room for it.
    """
    shuffle = np.random.default_rng(seed)
    order = shuffle.permutation(len(pieces))
    waiting: dict[int, list[list[list[int]]]] = {length: [] for length in LENGTHS}
    for start in range(0, len(order), POOL):
        rows: list[tuple[int, list[list[int]]]] = []
        room: dict[int, int] = {}
        for piece in sorted(
            (pieces[at] for at in order[start : start + POOL]),
            key=lambda piece: -len(piece),
        ):
            needed = len(piece) - 1
            best = min(
                (row for row in room if room[row] >= needed),
                key=room.__getitem__,
                default=None,
            )
            if best is None:
                best, length = (
                    len(rows),
                    next(length for length in LENGTHS if needed <= length),
                )
                rows.append((length, []))
                room[best] = length
            rows[best][1].append(piece)
            room[best] -= needed
            if room[best] < SHORTEST:
                del room[best]
        ready: list[tuple[int, list[list[list[int]]]]] = []
        for length, many in waiting.items():
            many += [records for size, records in rows if size == length]
            shuffle.shuffle(many)  # pyright: ignore[reportArgumentType]  # a list may be shuffled too
            count = ROWS // length
            while len(many) >= count:
                ready.append((length, many[:count]))
                del many[:count]
        shuffle.shuffle(ready)  # pyright: ignore[reportArgumentType]
        for length, chosen in ready:
            yield Rows.of(chosen, length)


# ---- fast operations of a step on a CPU


class Attention(torch.autograd.Function):
    """softmax(q k / sqrt(d) + bias) v as three products: for short rows its backward is
    much faster than torch's.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float
    ) -> Tensor:
        scores = torch.matmul(query, key.transpose(-1, -2)) * scale + bias
        weights = torch.softmax(scores, -1).to(query.dtype)  # autocast makes it float32
        ctx.save_for_backward(query, key, value, weights)
        ctx.scale = scale
        return torch.matmul(weights, value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights = ctx.saved_tensors
        by_weight = torch.matmul(grads[0], value.transpose(-1, -2))
        by_score = (
            torch._softmax_backward_data(by_weight, weights, -1, weights.dtype)
            * ctx.scale
        )
        by_value = torch.matmul(weights.transpose(-1, -2), grads[0])
        return (
            torch.matmul(by_score, key),
            torch.matmul(by_score.transpose(-1, -2), query),
            by_value,
            None,
            None,
        )


def attention(
    _: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    **__: Any,
) -> tuple[Tensor, None]:
    """Compute attention in the interface of transformers: [batch, heads, length, dim],
    with fewer key-value heads.
    """
    # rotary embeddings are float32 under autocast
    query, key = query.to(value.dtype), key.to(value.dtype)
    groups = query.shape[1] // key.shape[1]
    key, value = (
        part[:, :, None].expand(-1, -1, groups, -1, -1).reshape(query.shape)
        for part in (key, value)
    )
    result = Attention.apply(query.contiguous(), key, value, attention_mask, scaling)
    return result.transpose(1, 2).contiguous(), None


def _cross_entropy(logits: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return summed cross entropy, and its gradient by the logits."""
    scores = logits.float()
    best = scores.amax(-1, keepdim=True)
    masses = (scores - best).exp()
    total = masses.sum(-1, keepdim=True)
    hit = torch.arange(scores.shape[1])[None] == right[:, None]
    loss = (total.log() + best).sum() - scores.gather(1, right[:, None]).sum()
    return loss, (masses / total - hit.float()).bfloat16()


class CrossEntropy(torch.autograd.Function):
    """Cross entropy of hidden states under an output matrix, with its gradient, in
    pieces that fit the cache.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        output: Tensor,
        right: Tensor,
        fused: Any,
        piece: int = 512,
    ) -> Tensor:
        matrix, by_hidden, by_output = (
            output.bfloat16(),
            torch.empty_like(hidden),
            torch.zeros(output.shape),
        )
        loss = torch.zeros(())
        for start in range(0, len(hidden), piece):
            span = slice(start, start + piece)
            part, gradient = fused(hidden[span] @ matrix.T, right[span])
            by_hidden[span] = gradient @ matrix
            by_output += gradient.T @ hidden[span]
            loss = loss + part
        ctx.save_for_backward(by_hidden, by_output)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        by_hidden, by_output = ctx.saved_tensors
        return (
            by_hidden * grads[0].to(by_hidden),
            by_output * grads[0],
            None,
            None,
            None,
        )


# ---- the target


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning-rate schedule: rises over 100 steps, stays, and falls to 0 over the last
    part.
    """

    steps: int
    forwards: int
    rate: float
    falling: float = 0.3

    def share(self, step: int) -> float:
        return min(
            1.0, step / 100, (self.steps - step + 1) / (self.falling * self.steps)
        )


class Training:
    """Training of a Llama on every token of every record: matrices by Muon, the rest by
    AdamW.
    """

    def __init__(self, tokenizer: Any, compiled: bool) -> None:
        AttentionInterface.register("records", attention)
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            use_cache=False,
            attn_implementation="records",
            **SIZES,
        )
        self.model = LlamaForCausalLM(config)
        # outputs to the residual stream start small
        for name, weight in self.model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.data.mul_((2 * config.num_hidden_layers) ** -0.5)
        self.body = (
            torch.compile(self.model.model, dynamic=False)
            if compiled
            else self.model.model
        )
        self.fused = (
            torch.compile(_cross_entropy, dynamic=True) if compiled else _cross_entropy
        )
        inner = {
            weight
            for name, weight in self.model.named_parameters()
            if weight.dim() == 2 and "embed" not in name
        }
        outer = [weight for weight in self.model.parameters() if weight not in inner]
        self.optimizers = (
            torch.optim.Muon(
                [weight for weight in self.model.parameters() if weight in inner],
                weight_decay=0.05,
                momentum=0.95,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(outer, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
        )

    def read(self, rows: Any) -> tuple[Tensor, Tensor]:
        """Return the hidden states before each learnt token, and that token."""
        read: dict[str, Any] = {
            "input_ids": rows.tokens,
            "position_ids": rows.positions,
            "attention_mask": rows.bias,
        }
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.body(**read, use_cache=False).last_hidden_state
        learnt = rows.next >= 0
        return hidden[learnt].bfloat16(), rows.next[learnt]

    def step(self, group: list[Any], rate: float) -> tuple[float, int]:
        """Make one step of the optimisers.

        Returns the mean loss, in nats a token, and the tokens.
        """
        count, loss = sum(int((rows.next >= 0).sum()) for rows in group), 0.0
        for rows in group:
            hidden, right = self.read(rows)
            part = (
                CrossEntropy.apply(hidden, self.model.lm_head.weight, right, self.fused)
                / count
            )
            part.backward()
            loss += float(part.detach())
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for part in optimizer.param_groups:
                part["lr"] = rate * part.get("scale", 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss, count

    @torch.no_grad()
    def measure(self, held_out: Iterator[Any]) -> float:
        """Return the mean loss of held-out rows, in nats a learnt token."""
        loss, count = 0.0, 0
        for rows in held_out:
            hidden, right = self.read(rows)
            for part, token in zip(hidden.split(1024), right.split(1024), strict=True):
                logits = part @ self.model.lm_head.weight.bfloat16().T
                loss += float(
                    nn.functional.cross_entropy(logits.float(), token, reduction="sum")
                )
            count += len(right)
        return loss / count

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizers": [part.state_dict() for part in self.optimizers],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for optimizer, part in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(part)


Deal = Callable[[int], Iterator[Any]]
"""An epoch -> its rows, in an order of its own."""


def groups(deal: Deal, forwards: int, start: int) -> Iterator[list[Any]]:
    """Yield the rows of each step, from step `start` on, epoch after epoch; the
    remainder of an epoch is dropped.
    """
    epoch = done = 0
    while True:
        epoch += 1
        stream = deal(epoch)
        for group in zip(*[stream] * forwards, strict=False):
            done += 1
            if done > start:
                yield list(group)


def learn(
    training: Training,
    data: tuple[Deal, Deal],
    schedule: Schedule,
    out: Path,
    every: tuple[int, int],
) -> None:
    """Train to the end of the schedule, from the last checkpoint in `out` if there is
    one.

    `data` are training and held-out rows; `every` are the steps between measurements
    and between checkpoints.
    """
    saved = found(out / "checkpoints")
    start = int(saved[-1].name.rsplit("-", 1)[1]) if saved else 0
    if saved:
        training.restore(torch.load(saved[-1] / "state.pt", weights_only=True))
    log = Log(out / "log.jsonl", writes=True)
    log.begin(start if saved else -1)
    begun, tokens = perf_counter(), 0
    for step, group in enumerate(groups(data[0], schedule.forwards, start), start + 1):
        if step > schedule.steps:
            break
        now = schedule.rate * schedule.share(step)
        loss, count = training.step(group, now)
        if not math.isfinite(loss):
            raise ModelError(
                f"cannot go on at step {step}: the loss is {loss}. Lower 'rate'"
            )
        tokens, last = tokens + count, step == schedule.steps
        row = Row(step=step, loss=loss, learning_rate=now, tokens=count)
        if last or step % every[0] == 0:
            row.held_out = {"loss": training.measure(data[1](0))}
        log.add(row)
        if last or step % every[1] == 0:
            log.sync()
            save(
                out / "checkpoints",
                step,
                lambda folder: torch.save(training.state(), folder / "state.pt"),
            )
        if last or step % 20 == 0:
            seen = f", held out {row.held_out['loss']:.3f}" if row.held_out else ""
            typer.echo(
                f"step {step}: loss {loss:.3f}{seen}, "
                f"{tokens / (perf_counter() - begun):,.0f} tokens/s"
            )


app = typer.Typer(no_args_is_help=True, help=__doc__)
Corpus = Annotated[Path, typer.Option(help="Training records, .jsonl.gz.")]


@app.command()
def target(
    *,
    corpus: Corpus,
    held_out: Annotated[
        Path, typer.Option("--eval", help="Held-out records, .jsonl.gz.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for target/, checkpoints and the log.")
    ],
    steps: int = 2100,
    forwards: Annotated[
        int, typer.Option(help="Forwards of 4,096 tokens in a step.")
    ] = 3,
    rate: float = 3e-3,
    measure: Annotated[int, typer.Option(help="Steps between measurements.")] = 500,
    keep: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 100,
    compiled: Annotated[bool, typer.Option("--compile/--no-compile")] = True,
) -> None:
    """Train the target from scratch."""
    tokenizer = AutoTokenizer.from_pretrained(bundled.target())
    learnt, apart = encoded(corpus, tokenizer), encoded(held_out, tokenizer)
    training = Training(tokenizer, compiled)
    data = partial(dealt, learnt), partial(dealt, apart)
    learn(training, data, Schedule(steps, forwards, rate), out, (measure, keep))
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **SIZES))
    model.load_state_dict(training.model.state_dict())
    model.to(torch.bfloat16).save_pretrained(out / "target")
    tokenizer.save_pretrained(out / "target")
    tighten(out / "target" / "tokenizer.json")


def tighten(file: Path) -> None:
    """Rewrite a JSON file without optional spaces, which are three fifths of a
    tokenizer's.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(
        json.dumps(content, ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
    )


# ---- its drafters


@dataclass(frozen=True, slots=True)
class Plan:
    """A drafter to train, with its training settings."""

    options: TrainOptions
    recipe: TrainingConfig
    loss: str = "hybrid"
    length: int = 512
    """Tokens in a block."""


def plans() -> dict[str, Plan]:
    """Return the bundled drafters, each in a folder of its name."""
    many = TrainingConfig(steps=5000, batch=4, learning_rate=6e-3, optimizer="muon")
    return {
        "draft": Plan(
            LmOptions(layers=3, hidden=256), TrainingConfig(steps=6000, batch=8)
        ),
        "eagle": Plan(EagleOptions(unroll=4, draft_vocab=4096), many, length=256),
        "dspark": Plan(DSparkOptions(layers=2, block=8, anchors=32), many, length=256),
        "medusa": Plan(MedusaOptions(heads=2, anchors=64), many, length=256),
    }


def shown(row: Row) -> None:
    """Print the metrics of a step, where it was evaluated."""
    if row.held_out:
        typer.echo(
            f"step {row.step}: "
            + ", ".join(f"{name} {value:.3f}" for name, value in row.held_out.items())
        )


@app.command()
def drafters(
    *,
    corpus: Corpus,
    out: Annotated[
        Path, typer.Option(help="Folder with target/, for answers and drafters.")
    ],
    every: Annotated[
        int, typer.Option(help="Interval between the records used.", min=1)
    ] = 6,
    greedy: Annotated[
        int,
        typer.Option(
            help="Interval between greedy answers; the rest are sampled.", min=2
        ),
    ] = 8,
    steps: Annotated[
        int | None, typer.Option(help="Steps per drafter, for a trial.", min=1)
    ] = None,
    prompts: Annotated[
        int, typer.Option(help="Held-out prompts for the reports.", min=0)
    ] = 64,
) -> None:
    """Regenerate the answers of the corpus with the target, and train
    drafters on them.
    """
    records = read([corpus], answered=False)[::every]
    llm = LLM(out / "target", method="none")
    files: list[Path] = []
    for heat, some in (
        (0.0, records[::greedy]),
        (1.0, [one for at, one in enumerate(records) if at % greedy]),
    ):
        files.append(out / f"answers-{heat:g}.jsonl")
        sampling = Wishes(temperature=heat, max_tokens=200, batch=64)
        regenerate(
            llm,
            some,
            files[-1],
            sampling,
            lambda tally: typer.echo(f"{tally.records:,} records answered"),
        )
    for name, plan in plans().items():
        recipe = plan.recipe if steps is None else replace(plan.recipe, steps=steps)
        task = Job(
            options=plan.options,
            target=str(out / "target"),
            data=tuple(files),
            out=out / name,
            loss=plan.loss,
            length=plan.length,
            recipe=recipe,
            questions=Questions(prompts=prompts),
        )
        job.run(task, resume=True, watch=shown, note=typer.echo)
        for file in (out / name).glob("tokenizer.json"):  # a head has none of its own
            tighten(file)


if __name__ == "__main__":
    keep_freed()
    app()
