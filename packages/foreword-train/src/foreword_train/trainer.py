"""Training loop: deal blocks, accumulate gradients, step, evaluate, save; an
interrupted run resumes exactly.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from foreword.checks import whole
from foreword.errors import InvalidRequest, ModelError
from foreword_train import checkpoint
from foreword_train.data.packing import Block, Packer, Place, stack
from foreword_train.devices import Devices
from foreword_train.log import Log, Row
from foreword_train.optimizers import ADAMW, Optimizer, check_kind

if TYPE_CHECKING:
    from foreword_train.task import TrainTask

FLOOR = 0.1
"""Final learning rate, as a share of the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """Length, batch size and optimiser, checked; raises InvalidRequest."""

    steps: int = 1000
    """Steps of the optimiser."""
    batch: int = 8
    """Blocks in one forward, on each device."""
    accumulate: int = 1
    """Forwards per step."""
    learning_rate: float = 1e-3
    warmup: int = 50
    """Steps in which the learning rate rises from 0, before it falls along a cosine."""
    optimizer: str = ADAMW
    """adamw, or muon: faster per step of many tokens, for matrices inside a network."""
    weight_decay: float = 0.1
    """Weight decay of matrices; vectors do not decay."""
    clip: float = 1.0
    """Largest gradient norm; larger ones are scaled down to it."""
    seed: int = 0
    bf16: bool = False
    """Multiply in bfloat16 (autocast); weights and optimiser stay float32."""
    evaluate: int = 100
    """Steps between measurements on held-out data."""
    save: int = 200
    """Steps between checkpoints."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "evaluate", "save"):
            whole(1)(name, getattr(self, name))
        for name in ("warmup", "seed"):
            whole(0)(name, getattr(self, name))
        check_kind(self.optimizer)
        for name in ("learning_rate", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidRequest(
                    f"cannot train with {name} {getattr(self, name)}: '{name}' must be "
                    "above 0"
                )

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, 1 to `steps`."""
        if step <= self.warmup:
            return self.learning_rate * step / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (
            FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * done)) / 2
        )


class Trainer:
    """Training of a task in a folder. The curve is a function of task, data and recipe,
    interrupted or not.

    `settings` must be the same when a run resumes; `watch` gets every row of the log.
    """

    def __init__(
        self,
        task: "TrainTask",
        packer: Packer,
        recipe: TrainingConfig,
        *,
        folder: Path,
        devices: Devices,
        held_out: Sequence[Block] = (),
        settings: Mapping[str, Any] | None = None,
        watch: Callable[[Row], None] = lambda _: None,
    ) -> None:
        self.task = task
        self.packer = packer
        self.recipe = recipe
        self.folder = folder
        self.devices = devices
        self.held_out, self.watch = held_out, watch
        self.settings = json.loads(
            json.dumps({**(settings or {}), **asdict(recipe), "devices": devices.world})
        )
        self.log = Log(folder / "log.jsonl", writes=devices.rank == 0)
        self.place = Place()

    def run(self, *, resume: bool = False) -> list[Row]:
        """Train to the end and return the log.

        Raises InvalidRequest when the folder holds a run of other settings, or, without
        `resume`, any run.
        """
        self.task.to(self.devices.device)
        self.model = self.devices.wrap(self.task.module)
        self.optimizer = Optimizer(
            self.recipe.optimizer, self.task.module, self.recipe.weight_decay
        )
        torch.manual_seed(self.recipe.seed)
        done = self._restore(resume)
        # every rank must have looked for checkpoints before the first rank writes any
        self.devices.wait()
        if done < 0:
            self._note(Row(step=0, held_out=self.evaluate()))
        for step in range(max(done, 0) + 1, self.recipe.steps + 1):
            row = self._step(step)
            last = step == self.recipe.steps
            if last or step % self.recipe.evaluate == 0:
                row.held_out = self.evaluate()
            self._note(row)
            if last or step % self.recipe.save == 0:
                self._save(step)
        return self.log.rows

    def evaluate(self) -> dict[str, float]:
        """Return metrics per token of the held-out blocks; empty without any."""
        mine = self.held_out[self.devices.rank :: self.devices.world]
        learning = self.task.module.training
        self.task.module.eval()
        sums: dict[str, Tensor] = {}
        count = torch.zeros((), device=self.devices.device)
        with torch.no_grad(), self._precision():
            for block in mine:
                metrics = self.task.measure(
                    self.task.module, stack([block]).to(self.devices.device)
                )
                sums = {
                    name: sums.get(name, 0) + value for name, value in metrics.items()
                }
                count = count + block.learnt.sum().to(count)
        self.task.module.train(learning)
        total = float(self.devices.total(count))
        return (
            {
                name: float(self.devices.total(value)) / total
                for name, value in sums.items()
            }
            if total
            else {}
        )

    def _step(self, step: int) -> Row:
        blocks = self._deal(step)
        learnt = sum(
            (block.learnt.sum() for block in blocks), torch.zeros((), dtype=torch.int64)
        )
        count = int(self.devices.total(learnt.to(self.devices.device)))
        self.task.module.train()
        loss = torch.zeros((), device=self.devices.device)
        for number, block in enumerate(blocks, 1):
            with self.devices.gradients(self.model, last=number == len(blocks)):
                with self._precision():
                    part = self.task.loss(
                        self.model, block.to(self.devices.device)
                    ) / max(1, count)
                # gradients become a mean over ranks; the loss is a sum
                (part * self.devices.world).backward()
            loss += part.detach()
        norm = nn.utils.clip_grad_norm_(self.task.module.parameters(), self.recipe.clip)
        total = float(self.devices.total(loss))
        if not math.isfinite(total) or not math.isfinite(float(norm)):
            raise ModelError(
                f"cannot go on at step {step}: the loss is {total}, its gradient "
                f"{float(norm)}. Checkpoints are "
                "intact; train again with a lower learning rate, or without bf16"
            )
        rate = self.recipe.rate(step)
        self.optimizer.step(rate)
        return Row(
            step=step,
            loss=total,
            learning_rate=rate,
            gradient=float(norm),
            tokens=count,
        )

    def _deal(self, step: int) -> list[Block]:
        """Return this rank's blocks of a step; every rank deals all of them."""
        mine: list[Block] = []
        for number in range(self.recipe.accumulate * self.devices.world):
            dealt: list[Block] = []
            for _ in range(self.recipe.batch):
                block, self.place = self.packer.next(self.place)
                dealt.append(block)
            if number % self.devices.world == self.devices.rank:
                seed = (self.recipe.seed * 1_000_003 + step) * 1_009 + number
                mine.append(self.task.data(stack(dealt), seed))
        return mine

    def _precision(self) -> torch.autocast:
        return torch.autocast(
            self.devices.device.type, torch.bfloat16, enabled=self.recipe.bf16
        )

    def _note(self, row: Row) -> None:
        self.log.add(row)
        self.watch(row)

    # ---- saving and resuming

    def _save(self, step: int) -> None:
        if self.devices.rank == 0:
            self.log.sync()
            checkpoint.save(
                self.folder / checkpoint.CHECKPOINTS,
                step,
                lambda folder: self._write(folder, step),
            )
        self.devices.wait()

    def _write(self, folder: Path, step: int) -> None:
        state = {
            "module": self.task.module.state_dict(),
            "optimizer": self.optimizer.state(),
        }
        torch.save({**state, "random": torch.get_rng_state()}, folder / "state.pt")
        facts = {"step": step, "place": asdict(self.place), "settings": self.settings}
        (folder / "state.json").write_text(
            json.dumps(facts, indent=1), encoding="utf-8"
        )

    def _restore(self, resume: bool) -> int:
        """Restore the last checkpoint; return the steps done, -1 without one."""
        checkpoint.check_unused(self.folder, resume=resume)
        saved = checkpoint.found(self.folder / checkpoint.CHECKPOINTS)
        if not saved:
            self.log.begin(-1)
            return -1
        facts = json.loads((saved[-1] / "state.json").read_text(encoding="utf-8"))
        self._agree(facts["settings"])
        state = torch.load(
            saved[-1] / "state.pt", map_location="cpu", weights_only=True
        )
        self.task.module.load_state_dict(state["module"])
        self.optimizer.restore(state["optimizer"])
        torch.set_rng_state(state["random"])
        self.place = Place(**facts["place"])
        self.log.begin(facts["step"])
        return facts["step"]

    def _agree(self, before: dict[str, Any]) -> None:
        names = [
            name
            for name in {**before, **self.settings}
            if before.get(name) != self.settings.get(name)
        ]
        if names:
            changes = ", ".join(
                f"{name}: {before.get(name)!r}, now {self.settings.get(name)!r}"
                for name in names
            )
            raise InvalidRequest(
                f"cannot resume {self.folder}: its settings differ ({changes}). Resume "
                "with the same ones"
            )
