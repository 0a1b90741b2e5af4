"""Run the steps of a measurement one by one, and write what they found after each."""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from time import monotonic
from typing import IO, Any

ROOT = Path(__file__).parents[2]
STEPS = Path(__file__).with_name("steps.txt")
TAIL = 3000
"""Characters kept of the output of a step."""
SLOWER = 4
"""Times the limits on a CPU."""
GPU = "nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader"
EVERYWHERE = {
    "FREE": "--method ngram --method lm",
    "HEADS": "--method eagle --method mtp --method dspark",
}
FULL = {
    "PROMPTS": "--limit-prompts 3 --max-tokens 64",
    "REQUESTS": "--limit-prompts 32 --max-tokens 64",
    "COUNT": "32",
    "BATCHES": "1,8,32",
    "HEATS": "-t 0 -t 1",
    "SMALL_SHAPE": "llama-1b",
    "SMALL": "--inflate llama-1b",
    "LARGE_SHAPE": "llama-8b",
    "LARGE": "--inflate llama-8b",
    "TESTS": "-m '' tests/guarantees/test_gpu.py tests/model/cuda "
    "tests/train/test_job.py::test_it_learns_on_a_gpu",
}
TINY = {
    "PROMPTS": "--limit-prompts 1 --max-tokens 4",
    "REQUESTS": "--limit-prompts 2 --max-tokens 4",
    "COUNT": "2",
    "BATCHES": "1,2",
    "HEATS": "-t 0",
    "SMALL_SHAPE": "family",
    "SMALL": "",
    "LARGE_SHAPE": "family",
    "LARGE": "",
    "TESTS": "tests/model/cuda/test_sheet.py",
}
"""What the variables are on a CPU: every command line is tried."""


def main() -> int:
    """Run the named steps, by default all. Return 1 if one of them was not done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="Steps. Default: all.")
    parser.add_argument("--list", action="store_true", help="Print the steps only.")
    parser.add_argument("--site", type=Path, help="Folder for metadata of packages.")
    options = parser.parse_args()
    device, out = os.environ["DEVICE"], Path(os.environ["OUT"])
    variables = EVERYWHERE | {"DEVICE": device} | (TINY if device == "cpu" else FULL)
    text = Template(STEPS.read_text(encoding="utf-8"))
    lines = [
        shlex.split(one, comments=True)
        for one in text.substitute(variables).splitlines()
    ]
    chosen = [
        one for one in lines if one and (one[0] in options.names or not options.names)
    ]
    if options.list:
        sys.stdout.writelines(shlex.join(one) + "\n" for one in chosen)
        return 0
    describe(options.site)
    ends = monotonic() + float(os.environ["LIMIT_S"])
    out.mkdir(parents=True, exist_ok=True)
    steps: list[dict[str, Any]] = []
    summary = {"device": device, "gpu": subprocess.getoutput(GPU), "steps": steps}
    with (out / "log.txt").open("w", encoding="utf-8") as log:
        for name, seconds, *words in chosen:
            limit = float(seconds) * (SLOWER if device == "cpu" else 1)
            left = ends - monotonic()
            steps.append({"name": name, "words": words, "left": round(left, 1)})
            steps[-1] |= (
                run(words, min(limit, left), log)
                if left > limit / 2
                else {"state": "skipped"}
            )
            part = out / "summary.part"
            part.write_text(json.dumps(summary, indent=1), encoding="utf-8")
            part.replace(out / "summary.json")
            sys.stdout.write(f"{steps[-1]['state']} {name}\n")
    return int(any(one["state"] != "done" for one in steps))


def run(words: list[str], limit: float, log: IO[str]) -> dict[str, Any]:
    """Run a step, with all that it starts, within this many seconds."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, "-m", "foreword", *words, "--json", str(file)]
        if words[0] == "python":
            command = [sys.executable, *words[1:]]
        started, begins = monotonic(), log.tell()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"RESULT": str(file)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(limit)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output = Path(log.name).read_bytes()[begins:].decode(errors="replace")
        result = None
        with suppress(OSError, ValueError):  # it wrote none, or was ended as it did
            result = json.loads(file.read_bytes())
        return {
            "state": {0: "done", None: "timed out"}.get(code, "failed"),
            "code": code,
            "seconds": round(monotonic() - started, 1),
            "result": result,
            "tail": output[-TAIL:],
        }


def describe(site: Path) -> None:
    """Write the metadata of our packages that are not installed: commands are found by
    their entry points.
    """
    for file in ROOT.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        name, number = project["name"], project["version"]
        try:
            version(name)
        except PackageNotFoundError:
            folder = site / f"{name.replace('-', '_')}-{number}.dist-info"
            folder.mkdir()
            head = f"Metadata-Version: 2.4\nName: {name}\nVersion: {number}\n"
            (folder / "METADATA").write_text(head, encoding="utf-8")
            points = "".join(
                f"[{group}]\n" + "".join(f"{key} = {entries[key]}\n" for key in entries)
                for group, entries in project.get("entry-points", {}).items()
            )
            (folder / "entry_points.txt").write_text(points, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
