"""Build a release for every platform, check its archives, and run the wheels in an
environment of their own, without a compiler.

    make release            takes an hour on two cores, and needs a package index
    make release TWICE=1    also builds all archives again, and compares their bytes

Nothing is tagged or published: the last lines say how.
"""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
import wheels
from release_run import ReleaseError, run
from trial import Trial

ROOT = Path(__file__).parents[1]
LARGEST = 100 * 2**20
"""Bytes. The package index takes no larger file without being asked."""
SMALL = 3_000_000
"""Bytes of an archive of the core."""
PARTS = ROOT / "build" / "foreword.cdx.json"
"""The bill of materials, beside the archives: the package index takes only those."""
CORE = "foreword"
"""The package with C code."""
HEADING = r"^## \[{version}\] - (.+)$"
"""The line of CHANGELOG.md that begins a version, and its date."""
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
Twice = Annotated[bool, typer.Option(envvar="TWICE", help="Compile and build twice.")]


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
            f"package index or our own limit takes, {largest / 1e6:.1f} MB. Ship less."
        )


def build(
    package: Path, out: Path, variables: dict[str, str], *, sdist: bool = True
) -> Path:
    """Build and check the archives of a package, and return the wheel."""
    folder = out / f"{package.name}-new"
    kinds = [] if sdist else ["--wheel"]
    words = [sys.executable, "-m", "build", *kinds, "--outdir", str(folder)]
    run(words, package, variables)
    [wheel] = folder.glob("*.whl")
    files = tracked(package)
    settings = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))
    check_wheel(wheel, files, settings["project"]["license-files"])
    archives = [wheel, *folder.glob("*.tar.gz")]
    for archive in archives[1:]:
        check_sdist(archive, files)
    for archive in archives:
        check_size(archive, SMALL if package.name == "foreword" else LARGEST)
        sys.stdout.write(f"{archive.name}: {archive.stat().st_size / 1e6:.2f} MB\n")
        sys.stdout.flush()
        shutil.move(archive, out / archive.name)
    folder.rmdir()
    return out / wheel.name


def build_all(out: Path, zig: list[str]) -> dict[str, Path]:
    """Compile the C code and build the archives of all packages; return the wheels for
    this machine by package.
    """
    shutil.rmtree(out, ignore_errors=True)
    date = _git(ROOT, "log", "-1", "--format=%ct").strip()
    folders = sorted((ROOT / "packages").iterdir())
    epoch = {"SOURCE_DATE_EPOCH": date}
    found = {
        package.name: build(package, out, epoch)
        for package in folders
        if package.name != CORE
    }
    with tempfile.TemporaryDirectory() as name:
        for number, tag in enumerate(wheels.PLATFORMS):
            libraries = Path(name) / tag
            wheels.compile_platform(tag, zig, libraries)
            about = {"FOREWORD_PLATFORM": tag, "FOREWORD_LIBRARIES": str(libraries)}
            core = ROOT / "packages" / CORE
            wheel = build(core, out, epoch | about, sdist=not number)
            if tag == wheels.this_platform():
                found[CORE] = wheel
    return found


def check_same(first: Path, second: Path) -> None:
    """Raise ReleaseError where two folders differ in a file or its bytes."""
    names = sorted(
        {file.name for folder in (first, second) for file in folder.iterdir()}
    )
    for name in names:
        one, other = first / name, second / name
        if not (one.exists() and other.exists()):
            raise ReleaseError(f"cannot release: only one build made {name}")
        if one.read_bytes() != other.read_bytes():
            raise ReleaseError(
                f"cannot release {name}: two builds differ. Compare them with diffoscope."
            )


def list_parts(python: str, file: Path) -> None:
    """Write what an environment holds as a software bill of materials (CycloneDX)."""
    file.parent.mkdir(exist_ok=True)
    words = ["environment", python, "--output-reproducible", "--of", "JSON"]
    run([sys.executable, "-m", "cyclonedx_py", *words, "-o", str(file)], ROOT)


def main(
    torch: Torch, tag: Tag = "", out: Out = Path("dist"), twice: Twice = False
) -> None:
    """Build and check the archives of this version."""
    out = (ROOT / out).resolve()
    project = (ROOT / "packages/foreword/pyproject.toml").read_text(encoding="utf-8")
    version = tomllib.loads(project)["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    try:
        check_clean(ROOT)
        check_version(version, changelog, tag)
        sys.stdout.write(f"building {out}\n")
        with tempfile.TemporaryDirectory() as name:
            zig = wheels.compiler(Path(name))
            built = build_all(out, zig)
            if twice:
                build_all(Path(name) / "again", zig)
                check_same(out, Path(name) / "again")
        with tempfile.TemporaryDirectory() as name:
            trial = Trial(Path(name), torch)
            trial.try_alone(built)
            trial.try_together(built)
            list_parts(trial.python, PARTS)
    except ReleaseError as error:
        sys.exit(f"{error}")
    names = ", ".join(sorted(built))
    sys.stdout.write(RECIPE.format(version=version, names=names))


def _require(archive: Path, wanted: list[str], names: list[str]) -> None:
    missing = sorted(set(wanted) - set(names))
    if missing:
        raise ReleaseError(
            f"cannot release {archive.name}: {len(missing)} files are missing, "
            f"{missing[0]} first. See [tool.hatch.build] in its pyproject.toml."
        )


def _git(folder: Path, *words: str) -> str:
    return run(["git", *words], folder)


if __name__ == "__main__":
    typer.run(main)
