"""Run the steps of a measurement one by one, and write what they found after each."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import IO, Any

from steps import Step, steps

ROOT = Path(__file__).parents[2]
TAIL = 3000
"""Characters of the output of a step that failed."""
NVIDIA = "name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit"


def main() -> int:
    """Run the named steps, by default all. Returns 1 if one of them failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="Steps. Default: all.")
    parser.add_argument("--list", action="store_true", help="Print the commands only.")
    parser.add_argument("--site", type=Path, help="Folder for metadata of packages.")
    asked = parser.parse_args()
    device, out = os.environ.get("DEVICE", "cuda"), Path(os.environ.get("OUT", "."))
    chosen = [one for one in steps(device) if one.name in asked.names or not asked.names]
    if asked.list:
        for step in chosen:
            print(step.name, f"{step.seconds:g}", *step.command(Path("JSON")))
        return 0
    ends = monotonic() + float(os.environ.get("LIMIT_S", "570"))
    out.mkdir(parents=True, exist_ok=True)
    if asked.site is not None:
        describe(asked.site)
    summary = {"device": device, "gpu": gpu(), "steps": (done := [])}
    with (out / "log.txt").open("w", encoding="utf-8") as log:
        for step in chosen:
            done.append(outcome := run(step, ends - monotonic(), log))
            write(out / "summary.json", summary)
            print(outcome["state"], step.name, outcome.get("seconds", ""), flush=True)
    return int(any(one["state"] != "done" for one in done))


def run(step: Step, left: float, log: IO[str]) -> dict[str, Any]:
    """Run a step within its limit and the seconds that are left."""
    if left < step.seconds / 2:
        return {"name": step.name, "state": "skipped", "left": round(left, 1)}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = step.command(file)
        started, begins = monotonic(), log.tell()
        log.write(f"\n== {' '.join(command)}\n")
        log.flush()
        code = finished(command, min(step.seconds, left), log)
        result: dict[str, Any] = {
            "name": step.name,
            "state": {0: "done", None: "timed out"}.get(code, "failed"),
            "code": code,
            "seconds": round(monotonic() - started, 1),
            "words": list(step.words),
        }
        if file.exists() and file.stat().st_size:
            result["result"] = json.loads(file.read_text(encoding="utf-8"))
        if code != 0:
            output = Path(log.name).read_bytes()[begins:]
            result["tail"] = output.decode(errors="replace")[-TAIL:]
        return result


def finished(command: list[str], seconds: float, log: IO[str]) -> int | None:
    """Run a command with all that it starts; return its exit code, None if it was
    ended for its time.
    """
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def write(file: Path, value: object) -> None:
    """Replace a file by this value as JSON."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    part.replace(file)


def gpu() -> list[str]:
    """Return what the driver says about each GPU; nothing without one."""
    command = ["nvidia-smi", f"--query-gpu={NVIDIA}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return said.stdout.splitlines()


def describe(site: Path) -> None:
    """Write the metadata of our packages that are not installed: commands are found by
    their entry points.
    """
    for file in sorted(ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        name, number = project["name"], project["version"]
        try:
            version(name)
        except PackageNotFoundError:
            folder = site / f"{name.replace('-', '_')}-{number}.dist-info"
            folder.mkdir()
            words = f"Metadata-Version: 2.4\nName: {name}\nVersion: {number}\n"
            (folder / "METADATA").write_text(words, encoding="utf-8")
            points = [
                line
                for group, entries in project.get("entry-points", {}).items()
                for line in (f"[{group}]", *(f"{k} = {v}" for k, v in entries.items()))
            ]
            text = "\n".join([*points, ""])
            (folder / "entry_points.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
