"""The steps of a measurement of one GPU, in order of worth."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).parent
TESTS = (
    "tests/guarantees/test_gpu.py",
    "tests/model/cuda",
    "tests/train/test_job.py::test_it_learns_on_a_gpu",
)
"""Tests that use a GPU where there is one."""
HEADS = ("eagle", "mtp", "dspark")
"""Methods of the bundled trained heads."""
SLOWER = 4
"""Times the limits on a CPU."""


@dataclass(frozen=True)
class Step:
    """One command, which writes its result as JSON."""

    name: str
    seconds: float
    """Its limit. It is skipped where less than half of that is left."""
    words: tuple[str, ...]
    """Arguments of `foreword`, or of Python after "python"."""

    def command(self, json: Path) -> list[str]:
        """Return the command that writes its result to a file."""
        if self.words[0] == "python":
            return [sys.executable, *self.words[1:], str(json)]
        return [sys.executable, "-m", "foreword", *self.words, "--json", str(json)]


def steps(device: str) -> list[Step]:
    """Return the steps for a device; for the CPU, tiny ones that try the commands, with
    more time.
    """
    if device != "cpu":
        return _steps(device, *_FULL)
    return [
        replace(one, seconds=SLOWER * one.seconds) for one in _steps(device, *_TINY)
    ]


@dataclass(frozen=True)
class _Sizes:
    """How much is measured."""

    prompts: str
    tokens: str
    batches: str
    requests: str
    heats: tuple[str, ...] = ("-t", "0", "-t", "1")


_FULL = _Sizes("3", "64", "1,8,32", "32"), "llama-1b", "llama-8b"
_TINY = _Sizes("1", "4", "1,2", "2", ("-t", "0")), None, None


def _steps(
    device: str, sizes: _Sizes, small: str | None, large: str | None
) -> list[Step]:
    on = ("--device", device)
    answers = (*on, "--limit-prompts", sizes.prompts, "--max-tokens", sizes.tokens)
    few = (*on, "--limit-prompts", sizes.requests, "--max-tokens", sizes.tokens)
    load = ("--concurrency", sizes.batches, "--requests", sizes.requests, "-t", "0")
    text = ("bench", *answers, *sizes.heats, *_methods("ngram", "lm"))
    batch = ("bench", "batch", sizes.batches, *few, "-t", "0", *_methods("ngram", "lm"))
    compiled = ("bench", *answers, "-t", "0", *_methods("lm", "transformers.compiled"))
    limit = ("bench", "limit", "--quick", *on)
    return [
        Step("text-1b", 140, (*text, *_methods(*HEADS), *_shape(small))),
        Step("limit-1b", 60, (*limit, *_limit(small))),
        Step("bits-1b", 60, _python("bits.py", device, small)),
        Step("tests", 150, _python("tested.py", device, *TESTS)),
        Step("text-8b", 120, (*text, *_methods("eagle"), *_shape(large))),
        Step("batch-1b", 90, (*batch, *_shape(small))),
        Step("compiled-1b", 140, (*compiled, *_shape(small))),
        Step("serve-1b", 120, ("bench", "serve", *few, *load, *_shape(small))),
        Step("certify", 120, ("certify", "--quick", *on, *_methods("lm", *HEADS))),
        Step("limit-8b", 60, (*limit, *_limit(large))),
        Step("bits-8b", 60, _python("bits.py", device, large)),
        Step("batch-8b", 90, (*batch, *_shape(large))),
        Step("text-own", 60, (*text, *_methods(*HEADS))),
    ]


def _methods(*names: str) -> tuple[str, ...]:
    return tuple(word for name in names for word in ("--method", name))


def _shape(name: str | None) -> tuple[str, ...]:
    return ("--inflate", name) if name else ()


def _limit(name: str | None) -> tuple[str, ...]:
    return "--inflate", name or "family"


def _python(file: str, device: str, *words: str | None) -> tuple[str, ...]:
    return "python", str(HERE / file), device, *(word or "family" for word in words)
