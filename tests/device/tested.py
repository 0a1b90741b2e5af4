"""Run tests with what pytest finds here: `tested.py DEVICE PATH… FILE`."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path


def main(device: str, paths: list[str], file: str) -> int:
    """Run the tests of these paths; write how many passed, and which did not."""
    chosen = ["-m", ""]
    if device == "cpu":
        paths, chosen = ["tests/model/cuda/test_sheet.py"], []
    if find_spec("beartype") is None:  # shapes and types are then not checked
        chosen += ["-o", "addopts=--import-mode=importlib --strict-markers"]
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--durations=5", *chosen, *paths]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(run.stdout)
    lines = run.stdout.splitlines()
    counts = re.findall(r"(\d+) (passed|failed|skipped|errors?)", lines[-1] if lines else "")
    found = {name: int(count) for count, name in counts}
    found["not_passed"] = [one for one in lines if one.startswith(("FAILED", "ERROR"))]
    Path(file).write_text(json.dumps(found), encoding="utf-8")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:-1], sys.argv[-1]))
