"""Train a small image-token model, a VQ autoencoder and drafters on synthetic pictures;
measure and draw with them.

$ python recipes/image_tokens.py train --out pictures
$ python recipes/image_tokens.py measure --out pictures
$ python recipes/image_tokens.py draw --out pictures --method lm

A picture is a coloured shape on a noisy gradient. The autoencoder turns it into 144
tokens, row by row; a Llama writes them after a class token. `train` resumes where it
was stopped. It takes minutes on two cores of a CPU with AMX.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from foreword import LLM, Completion, SamplingParams
from foreword.errors import ModelError
from foreword.native.cpu import fast_bfloat16
from foreword_train.data.packing import Block, Packer, Piece
from foreword_train.data.records import Record
from foreword_train.devices import OneDevice
from foreword_train.log import Row
from foreword_train.losses import loss
from foreword_train.registry import EagleOptions, LmOptions, MedusaOptions, TrainOptions
from foreword_train.task import TrainContext
from foreword_train.trainer import Trainer, TrainingConfig

PATCH, GRID = 4, 12
"""Pixels of a token's side, and tokens of a picture's side."""
SIDE = PATCH * GRID
TOKENS = GRID * GRID
"""Tokens of a picture."""
CODES, WIDTH = 256, 8
"""Entries of the codebook, and numbers in each."""
COLOURS = torch.tensor(
    [
        (220, 50, 47),
        (38, 139, 210),
        (133, 153, 0),
        (211, 54, 130),
        (203, 165, 22),
        (108, 113, 196),
    ]
)
SHAPES = 4
"""Disc, square, triangle, ring."""
CLASSES = SHAPES * len(COLOURS)
ANY = CODES + CLASSES
"""The token of a picture of any class, for guidance.

Token CODES + class comes before a picture of one class.
"""
METHODS = [
    "ngram",
    "suffix",
    "recycle",
    "lookahead",
    "medusa",
    "eagle",
    "lm",
    "cascade(recycle, lm)",
]
HELD_OUT = 16
"""Pictures that are not learnt from."""


# ---- pictures


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures, uint8 [count, 3, SIDE, SIDE], and their classes, int64
    [count].
    """
    draw = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=draw)

    classes = torch.randint(CLASSES, (count,), generator=draw)
    line = torch.linspace(-1, 1, SIDE)
    x, y = line[None, None, :], line[None, :, None]
    angle = uniform(0, 2 * math.pi, 1, 1)
    slope = (angle.cos() * x + angle.sin() * y) / 3 + 0.5
    start, end = uniform(0.1, 0.9, 3, 1, 1), uniform(0.1, 0.9, 3, 1, 1)
    ground = start + (end - start) * slope[:, None]
    across, down, size = (
        x - uniform(-0.4, 0.4, 1, 1),
        y - uniform(-0.4, 0.4, 1, 1),
        uniform(0.3, 0.55, 1, 1),
    )
    distance, box = (
        (across**2 + down**2).sqrt(),
        torch.maximum(across.abs(), down.abs()),
    )
    roof = torch.maximum(down, 2 * across.abs() - down) - size / 2
    inside = torch.stack(
        [
            distance - size,
            box - size * 0.85,
            roof - size / 2,
            (distance - size * 0.75).abs() - size / 4,
        ]
    )
    chosen = inside[classes % SHAPES, torch.arange(count)] < 0
    colour = COLOURS[classes // SHAPES][:, :, None, None] / 255
    clean = torch.where(chosen[:, None], colour, ground)
    noisy = clean + 0.04 * torch.randn(count, 3, SIDE, SIDE, generator=draw)
    return (noisy.clamp(0, 1) * 255).round().to(torch.uint8), classes


def png(picture: Tensor) -> bytes:
    """Return a picture, uint8 [3, height, width], as a PNG file."""
    _, height, width = picture.shape
    rows = b"".join(
        b"\0" + bytes(row.flatten().tolist()) for row in picture.permute(1, 2, 0)
    )
    head = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    chunks = [
        struct.pack(">I", len(data))
        + name
        + data
        + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


# ---- pictures as tokens


class Autoencoder(nn.Module):
    """A VQ autoencoder: a picture is GRID x GRID tokens, each the nearest of CODES
    directions (as in LlamaGen).
    """

    used: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(PATCH),
            nn.Conv2d(3 * PATCH**2, 64, 1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(64, WIDTH, 1),
        )
        self.codes = nn.Parameter(torch.randn(CODES, WIDTH))
        self.decoder = nn.Sequential(
            nn.Conv2d(WIDTH, 64, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(64, 3 * PATCH**2, 1),
            nn.PixelShuffle(PATCH),
        )
        self.register_buffer("used", torch.ones(CODES))

    def directions(self, scaled: Tensor) -> Tensor:
        """Return the encoder's direction at each place [batch, GRID, GRID, WIDTH] of
        pictures in [0, 1].
        """
        return F.normalize(self.encoder(scaled).float().permute(0, 2, 3, 1), dim=-1)

    def nearest(self, directions: Tensor) -> Tensor:
        return (directions @ F.normalize(self.codes, dim=-1).T).argmax(-1)

    def painted(self, directions: Tensor) -> Tensor:
        return self.decoder(directions.permute(0, 3, 1, 2)).float()

    @torch.no_grad()
    def tokens(self, some: Tensor) -> Tensor:
        """Return the tokens [batch, TOKENS] of pictures."""
        return torch.cat(
            [
                self.nearest(self.directions(part / 255)).flatten(1)
                for part in some.split(256)
            ]
        )

    @torch.no_grad()
    def picture(self, tokens: list[int]) -> Tensor:
        """Return the picture of TOKENS tokens; one that is no code counts as code 0."""
        codes = torch.tensor([token if token < CODES else 0 for token in tokens]).view(
            1, GRID, GRID
        )
        painted = self.painted(F.normalize(self.codes, dim=-1)[codes])[0]
        return (painted.clamp(0, 1) * 255).round().to(torch.uint8)


class Painting:
    """Task that trains the autoencoder. A block holds the number of a picture."""

    def __init__(self, some: Tensor) -> None:
        torch.manual_seed(0)
        self.pictures, self.module = some, Autoencoder()

    def to(self, device: torch.device) -> None:
        pass

    def data(self, block: Block, seed: int) -> Block:
        return block

    def loss(self, module: Any, block: Block) -> Tensor:
        wanted = self.pictures[block.tokens[:, 1]] / 255
        directions = module.directions(wanted)
        flat = directions.flatten(0, 2)
        chosen = module.nearest(directions)
        if module.training:
            self._revive(module, chosen.flatten(), flat.detach())
        codes = F.normalize(module.codes, dim=-1)[chosen]
        painted = module.painted(directions + (codes - directions).detach())
        errors = [
            F.mse_loss(codes, directions.detach()),
            0.25 * F.mse_loss(directions, codes.detach()),
        ]
        return (5 * F.mse_loss(painted, wanted) + sum(errors)) * len(wanted)

    def measure(self, module: Any, block: Block) -> dict[str, Tensor]:
        return {"loss": self.loss(module, block)}

    @torch.no_grad()
    def _revive(self, module: Any, chosen: Tensor, directions: Tensor) -> None:
        """Move codes that were hardly used lately to random directions of the
        encoder.
        """
        module.used.mul_(0.95).add_(chosen.bincount(minlength=CODES), alpha=0.05)
        idle = module.used < 0.1
        module.codes[idle] = directions[
            torch.randint(len(directions), (int(idle.sum()),))
        ]
        module.used[idle] = 1.0


class Writing:
    """Task that trains the target: the next token of a picture."""

    def __init__(self, hidden: int, layers: int) -> None:
        torch.manual_seed(0)
        self.module = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=ANY + 1,
                hidden_size=hidden,
                intermediate_size=hidden * 11 // 4 // 32 * 32,
                num_hidden_layers=layers,
                num_attention_heads=hidden // 64,
                num_key_value_heads=hidden // 64,
                max_position_embeddings=256,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=None,
            )
        )

    def to(self, device: torch.device) -> None:
        pass

    def data(self, block: Block, seed: int) -> Block:
        """Replace the class of every tenth picture by ANY."""
        some = (
            torch.rand(len(block.tokens), generator=torch.Generator().manual_seed(seed))
            < 0.1
        )
        block.tokens[some, 0] = ANY
        return block

    def loss(self, module: Any, block: Block) -> Tensor:
        logits = module(input_ids=block.tokens[:, :-1], use_cache=False).logits.float()
        return F.cross_entropy(
            logits.flatten(0, 1), block.tokens[:, 1:].flatten(), reduction="sum"
        )

    def measure(self, module: Any, block: Block) -> dict[str, Tensor]:
        return {"loss": self.loss(module, block)}


# ---- training


def trained(
    task: Any, pieces: list[Piece], folder: Path, config: TrainingConfig
) -> None:
    """Train a task on pieces of one length, a few held out, or resume where it was
    stopped.
    """
    records, length = (
        [Record(text=str(number)) for number in range(len(pieces))],
        len(pieces[0]),
    )
    packer = Packer(
        lambda record: pieces[int(record.text)], records[:-HELD_OUT], length
    )
    held_out = Packer(packer.encode, records[-HELD_OUT:], length).all(HELD_OUT)

    def show(row: Row) -> None:
        if row.held_out:
            typer.echo(
                f"{folder.name}, step {row.step}: "
                + ", ".join(f"{k} {v:.3f}" for k, v in row.held_out.items())
            )

    device = OneDevice(torch.device("cpu"))
    Trainer(
        task,
        packer,
        config,
        folder=folder,
        devices=device,
        held_out=held_out,
        watch=show,
    ).run(resume=True)


def plans() -> dict[str, TrainOptions]:
    """Return the trained drafters, each in a folder of its name."""
    return {
        "lm": LmOptions(layers=1, hidden=64),
        "medusa": MedusaOptions(heads=3, anchors=64),
        "eagle": EagleOptions(unroll=4, draft_vocab=ANY + 1),
    }


app = typer.Typer(no_args_is_help=True, help=__doc__)
Out = Annotated[
    Path, typer.Option(help="Folder for the autoencoder, the target and its drafters.")
]


@app.command()
def train(
    *,
    out: Out,
    count: Annotated[int, typer.Option(help="Pictures to learn from.", min=128)] = 6000,
    steps: Annotated[int, typer.Option(help="Steps of each training.", min=1)] = 600,
    hidden: Annotated[
        int, typer.Option(help="Hidden size of the target, in multiples of 64.")
    ] = 128,
    layers: Annotated[int, typer.Option(help="Layers of the target.", min=1)] = 4,
    batch: Annotated[int, typer.Option(help="Pictures in a step.", min=1)] = 16,
) -> None:
    """Train the autoencoder, the target on its tokens, and the drafters on
    the target.
    """
    common: dict[str, Any] = dict(
        steps=steps, batch=batch, bf16=fast_bfloat16(), evaluate=100, save=100
    )
    some, classes = pictures(count, seed=1)
    painting = Painting(some)
    numbers = [Piece([number, number], [False, True]) for number in range(count)]
    trained(
        painting,
        numbers,
        out / "autoencoder",
        TrainingConfig(**common, learning_rate=2e-3),
    )
    torch.save(painting.module.state_dict(), out / "autoencoder" / "weights.pt")
    rows = torch.cat(
        [classes[:, None] + CODES, painting.module.eval().tokens(some)], 1
    ).tolist()
    pieces = [Piece(row, [False] + [True] * TOKENS) for row in rows]
    writing = Writing(hidden, layers)
    trained(
        writing, pieces, out / "target", TrainingConfig(**common, learning_rate=2e-3)
    )
    writing.module.to(torch.bfloat16).save_pretrained(out / "target")
    for name, options in plans().items():
        context = TrainContext(
            source=out / "target",
            target=AutoModelForCausalLM.from_pretrained(out / "target"),
            tokenizer=None,
            eos=frozenset(),
            loss=loss("forward-kl"),
            temperature=1.0,
            length=TOKENS + 1,
            seed=0,
            counts=lambda: torch.tensor(rows).flatten().bincount(minlength=ANY + 1),
        )
        torch.manual_seed(0)
        task = options.begin(context)
        trained(task, pieces, out / name, TrainingConfig(**common, learning_rate=3e-3))
        task.save(out / name)


# ---- use


class Guidance:
    """Classifier-free guidance as a processor of logits: a function of the tokens
    before a position, and of no draft.

    It reads the whole picture so far once more for every position, drafted ones too, so
    it is exact and slow.
    """

    def __init__(self, target: Path, scale: float) -> None:
        self.model, self.scale = (
            AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval(),
            scale,
        )

    @torch.inference_mode()
    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        free = torch.cat([torch.full_like(tokens[:, :1], ANY), tokens[:, 1:]], 1)
        unguided = self.model(free).logits[:, -1].to(logits)
        return unguided + self.scale * (logits - unguided)


def asked(
    count: int, seed: int, **options: Any
) -> tuple[list[list[int]], list[SamplingParams]]:
    """Return prompts, of each class in turn, and their parameters.

    `options` are those of SamplingParams.
    """
    common: dict[str, Any] = dict(max_tokens=TOKENS, ignore_eos=True) | options
    prompts = [[CODES + number % CLASSES] for number in range(count)]
    return prompts, [
        SamplingParams(**common, seed=seed + number) for number in range(count)
    ]


def opened(out: Path) -> LLM:
    """Return the target with all its trained drafters; a request names its method."""
    return LLM(
        out / "target",
        tokenizer=False,
        method="none",
        draft={name: out / name for name in plans()},
    )


def decoder(out: Path) -> Autoencoder:
    """Return the trained autoencoder."""
    result = Autoencoder()
    result.load_state_dict(
        torch.load(out / "autoencoder" / "weights.pt", weights_only=True)
    )
    return result.eval()


@app.command()
def measure(
    *,
    out: Out,
    methods: Annotated[
        list[str], typer.Option("--method", help="Drafting method; may be given again.")
    ] = METHODS,
    nodes: Annotated[int, typer.Option(help="Draft tokens in a round.", min=1)] = 16,
    count: Annotated[int, typer.Option(help="Pictures for each number.", min=1)] = 24,
    stored: Annotated[
        int,
        typer.Option(
            help="Pictures written before, for methods that store any.", min=0
        ),
    ] = 96,
) -> None:
    """Print acceptance at the first place and tokens per pass; check that drafts change
    no token of a picture.
    """
    llm = opened(out)
    typer.echo(
        f"| method, {nodes} draft tokens | T = 1: first | tokens per pass | T = 0: "
        "first | tokens per pass |"
    )
    typer.echo("|---|--:|--:|--:|--:|")
    plain = {
        heat: llm.generate(*asked(count, 0, temperature=heat)) for heat in (1.0, 0.0)
    }
    for method in methods:
        for before in (
            (0, stored) if "recycle" in method or method == "suffix" else (0,)
        ):
            own: dict[str, Any] = {"method": method, "nodes": nodes}
            if before:
                llm.generate(*asked(before, 1000, **own))
            found = list[str]()
            for heat, wanted in plain.items():
                prompts, params = asked(count, 0, temperature=heat, **own)
                if not before:  # no picture helps another
                    params = [
                        replace(one, tenant=f"{heat}, {one.seed}") for one in params
                    ]
                answers = llm.generate(prompts, params)
                if [one.tokens for one in answers] != [one.tokens for one in wanted]:
                    raise ModelError(
                        f"cannot trust {method}: a picture differs from plain "
                        "decoding's. Report it"
                    )
                found += [
                    f"{first(answers):.2f}",
                    f"{TOKENS * count / sum(one.stats.rounds for one in answers):.2f}",
                ]
            typer.echo(
                f"| `{method}`{f', {before} pictures before' if before else ''} | "
                + " | ".join(found)
                + " |"
            )


def first(answers: list[Completion]) -> float:
    """Return the share of drafting rounds whose first draft token, or one of its
    siblings, was accepted.
    """
    rounds = sum(one.stats.drafting_rounds for one in answers)
    return sum(sum(one.stats.accepted_at[:1]) for one in answers) / max(1, rounds)


@app.command()
def draw(
    *,
    out: Out,
    method: Annotated[str, typer.Option(help="Drafting method.")] = "lm",
    count: Annotated[int, typer.Option(help="Pictures.", min=1)] = 24,
    seed: int = 0,
    temperature: float = 1.0,
    top_k: Annotated[int, typer.Option(help="Likeliest tokens kept; 0 keeps all.")] = 0,
    guidance: Annotated[
        float, typer.Option(help="Scale of classifier-free guidance; 1 is none.")
    ] = 1.0,
) -> None:
    """Draw pictures plainly and with drafts, and write both as PNG files; they are the
    same files.
    """
    llm, paint = opened(out), decoder(out)
    guides = (Guidance(out / "target", guidance),) if guidance != 1 else ()
    files = list[bytes]()
    for name in ("none", method):
        options: dict[str, Any] = dict(
            temperature=temperature,
            top_k=top_k,
            processors=guides,
            method=name,
            nodes=16,
        )
        answers = llm.generate(*asked(count, seed, **options))
        drawn = [paint.picture(one.tokens) for one in answers]
        rows = [
            torch.cat(drawn[start : start + 6], 2)
            for start in range(0, len(drawn) // 6 * 6 or 1, 6)
        ]
        files.append(png(torch.cat(rows, 1)))
        (out / f"{name}.png").write_bytes(files[-1])
        passes = sum(one.stats.rounds for one in answers)
        typer.echo(
            f"{out / name}.png: {count} pictures of {TOKENS} tokens, "
            f"{TOKENS * count / passes:.2f} tokens per pass"
        )
    typer.echo(
        "the same file" if files[0] == files[1] else "the files differ: report it"
    )


if __name__ == "__main__":
    app()
