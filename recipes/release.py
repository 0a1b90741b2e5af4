"""Build a release, check its archives, and run the wheels in an environment of their own.

    make release    takes minutes, and needs a package index

Nothing is tagged or published: the last lines say how.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import torch_index
import typer

ROOT = Path(__file__).parents[1]
LARGEST = 100 * 2**20
"""Bytes. The package index takes no larger file without being asked."""
HEADING = r"^## \[{version}\] - (.+)$"
"""The line of CHANGELOG.md that begins a version, and its date."""
COMMANDS = {
    "foreword-server": ("serve", "batch"),
    "foreword-train": ("train", "data", "export"),
    "foreword-lab": ("bench", "certify", "demo", "doctor", "theory", "tune", "view"),
}
"""Package -> commands that it brings."""
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
RECIPE = """
Built and tried: {names}. To release it:

    1. In CHANGELOG.md, write today's date behind [{version}], and commit it.
    2. git tag -a v{version} -m "Foreword {version}"
    3. git push origin v{version}    # .github/workflows/release.yml publishes it
"""

Tag = Annotated[str, typer.Option(envvar="TAG", help="Git tag to be published.")]
Torch = Annotated[str, typer.Argument(help="Build of torch to try the wheel with.")]
Out = Annotated[Path, typer.Option(help="Folder of the archives; emptied first.")]


class ReleaseError(Exception):
    """A reason not to release, in one line."""


def tracked(folder: Path) -> list[str]:
    """Return the files that git holds, relative to the folder."""
    return _git(folder, "ls-files", "-z").strip("\0").split("\0")


def check_clean(folder: Path) -> None:
    """Raise ReleaseError where a file differs from the last commit, or is new."""
    changed = _git(folder, "status", "--porcelain").splitlines()
    if changed:
        raise ReleaseError(
            f"cannot release: {len(changed)} files are not committed, "
            f"{changed[0][3:]} first. Commit or stash them."
        )


def check_version(version: str, changelog: str, tag: str = "") -> None:
    """Raise ReleaseError where the changelog does not name the version, or where a tag
    names another version or one without a date.
    """
    heading = HEADING.format(version=re.escape(version))
    found = re.search(heading, changelog, re.MULTILINE)
    if found is None:
        raise ReleaseError(
            f"cannot release {version}: CHANGELOG.md does not name it. "
            f'Add a section "## [{version}] - DATE".'
        )
    if tag and tag != f"v{version}":
        raise ReleaseError(
            f"cannot release {version} as tag {tag!r}. Tag v{version}, or change "
            "the version in pyproject.toml."
        )
    if tag and not DATE.fullmatch(found[1]):
        raise ReleaseError(
            f"cannot publish {version}: its date in CHANGELOG.md is {found[1]!r}. "
            "Write the day as YYYY-MM-DD."
        )


def check_wheel(wheel: Path, files: Iterable[str], licences: Iterable[str]) -> None:
    """Raise ReleaseError where the wheel has not every file of its package, and every
    licence. Paths begin at the folder of the package.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    prefix = "src/"
    package = [file for file in files if file.startswith(prefix)]
    wanted = [file.removeprefix(prefix) for file in package]
    (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    wanted += [f"{info}/licenses/{licence}" for licence in licences]
    _require(wheel, wanted, names)


def check_sdist(sdist: Path, files: Iterable[str]) -> None:
    """Raise ReleaseError where the source archive lacks a file of its package."""
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    _require(sdist, list(files), names)


def check_size(archive: Path, largest: int = LARGEST) -> None:
    """Raise ReleaseError for an archive that the package index would refuse."""
    size = archive.stat().st_size
    if size > largest:
        raise ReleaseError(
            f"cannot release {archive.name}: {size / 1e6:.1f} MB are more than the "
            f"package index takes, {largest / 1e6:.1f} MB. Ship smaller models."
        )


def try_wheels(wheels: dict[str, Path], torch: str) -> None:
    """Install the wheels in a new environment outside of the source: the core alone,
    each other beside it, then all of them, with the demo.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run([sys.executable, "-m", "venv", "env"], folder)
        python = str(folder / "env" / "bin" / "python")
        pip = [python, "-m", "pip"]
        option, reason = torch_index.option(gpu=False)
        sys.stdout.write(f"installing the wheels, which takes minutes; {reason}\n")
        sys.stdout.flush()
        _run([*pip, "install", "--quiet", torch, *option.split()], folder)
        _run([*pip, "install", "--quiet", str(wheels["foreword"])], folder)
        ran = [python, "-c", "import foreword; print(foreword.__file__)"]
        file = _run(ran, folder).strip()
        if not Path(file).is_relative_to(folder):
            raise ReleaseError(f"cannot try the wheel: python imports {file}")
        command = str(folder / "env" / "bin" / "foreword")
        _run([command, "methods"], folder)
        for package, commands in COMMANDS.items():
            for word in commands:
                _refused([command, word], folder)
            _run([*pip, "install", "--quiet", str(wheels[package])], folder)
            for word in commands:
                _run([command, word, "--help"], folder)
            _run([*pip, "uninstall", "--quiet", "--yes", package], folder)
        _run([*pip, "install", "--quiet", *map(str, wheels.values())], folder)
        # A cache of its own: the kernels are compiled from the sources in the wheel.
        cache = {"XDG_CACHE_HOME": str(folder / "cache")}
        demo = [python, "-m", "foreword", "demo", "--quick"]
        sys.stdout.write(_run(demo, folder, cache))


def _refused(command: list[str], folder: Path) -> None:
    """Raise ReleaseError unless a command says which package brings it."""
    try:
        _run(command, folder)
    except ReleaseError as error:
        if "pip install 'foreword[" in " ".join(str(error).split()):
            return
        raise
    raise ReleaseError(f"cannot release: {' '.join(command)} ran without its package")


def build(package: Path, out: Path) -> Path:
    """Build and check the archives of a package, and return the wheel."""
    folder = out / package.name
    _run([sys.executable, "-m", "build", "--outdir", str(folder)], package)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    files = tracked(package)
    settings = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))
    check_wheel(wheel, files, settings["project"]["license-files"])
    check_sdist(sdist, files)
    for archive in (wheel, sdist):
        check_size(archive)
        sys.stdout.write(f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB\n")
        shutil.move(archive, out / archive.name)
    folder.rmdir()
    return out / wheel.name


def main(torch: Torch, tag: Tag = "", out: Out = Path("dist")) -> None:
    """Build and check the archives of this version."""
    out = (ROOT / out).resolve()
    project = (ROOT / "packages/foreword/pyproject.toml").read_text(encoding="utf-8")
    version = tomllib.loads(project)["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    try:
        check_clean(ROOT)
        check_version(version, changelog, tag)
        sys.stdout.write(f"building {out}\n")
        shutil.rmtree(out, ignore_errors=True)
        packages = sorted((ROOT / "packages").iterdir())
        wheels = {package.name: build(package, out) for package in packages}
        try_wheels(wheels, torch)
    except ReleaseError as error:
        sys.exit(f"{error}")
    names = ", ".join(sorted(wheels))
    sys.stdout.write(RECIPE.format(version=version, names=names))


def _require(archive: Path, wanted: list[str], names: list[str]) -> None:
    missing = sorted(set(wanted) - set(names))
    if missing:
        raise ReleaseError(
            f"cannot release {archive.name}: {len(missing)} files are missing, "
            f"{missing[0]} first. See [tool.hatch.build] in its pyproject.toml."
        )


def _git(folder: Path, *words: str) -> str:
    return _run(["git", *words], folder)


def _run(
    command: list[str], folder: Path, variables: dict[str, str] | None = None
) -> str:
    """Return what a command prints; raise ReleaseError with its errors if it fails."""
    settings = os.environ | (variables or {})
    settings.pop("PYTHONPATH", None)
    ran = subprocess.run(
        command, cwd=folder, env=settings, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise ReleaseError(
            f"cannot release: {' '.join(command)} failed\n{ran.stdout}{ran.stderr}"
        )
    return ran.stdout


if __name__ == "__main__":
    typer.run(main)
