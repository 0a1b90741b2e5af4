"""A release is refused where its tree, its changelog or its archives are not complete."""

import importlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest

import foreword

ROOT = Path(__file__).parents[2]
FILES = (
    "README.md src/foreword/__init__.py src/foreword/target/model.safetensors"
).split()
LICENCES = ["LICENSE", "src/foreword/ATTRIBUTION.md"]
INFO = "foreword-0.1.0.dist-info"
IN_WHEEL = [
    "foreword/__init__.py",
    "foreword/target/model.safetensors",
    f"{INFO}/METADATA",
    *(f"{INFO}/licenses/{name}" for name in LICENCES),
]


@pytest.fixture(scope="module")
def release() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "recipes"))
        yield importlib.import_module("release")
        for name in ("release", "release_run", "torch_index", "trial", "wheels"):
            sys.modules.pop(name, None)


def git(folder: Path, *words: str) -> None:
    named = ["-c", "user.name=one", "-c", "user.email=one@example.org"]
    subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True)


def wheel(folder: Path, names: list[str]) -> Path:
    path = folder / "foreword-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "content")
    return path


def sdist(folder: Path, names: list[str]) -> Path:
    path = folder / "foreword-0.1.0.tar.gz"
    content = folder / "content"
    content.write_text("content", encoding="utf-8")
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.add(content, f"foreword-0.1.0/{name}")
    return path


def test_a_tree_that_is_not_committed_is_refused(release, tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "one.py").write_text("1\n", encoding="utf-8")
    with pytest.raises(release.ReleaseError, match=r"1 files .*one\.py first"):
        release.check_clean(tmp_path)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "Add one")
    release.check_clean(tmp_path)
    assert release.tracked(tmp_path) == ["one.py"]
    (tmp_path / "one.py").write_text("2\n", encoding="utf-8")
    with pytest.raises(release.ReleaseError, match="not committed"):
        release.check_clean(tmp_path)


@pytest.mark.parametrize(
    ("changelog", "tag", "reason"),
    [
        ("## [0.1.00] - 2026-01-01\n", "", "does not name it"),
        ("about [0.1.0] - 2026-01-01\n", "", "does not name it"),
        ("## [0.1.0] - 2026-01-01\n", "v0.1.1", "as tag 'v0.1.1'"),
        ("## [0.1.0] - unreleased\n", "v0.1.0", "'unreleased'"),
    ],
)
def test_a_version_that_the_changelog_does_not_name_is_refused(
    release, changelog, tag, reason
):
    with pytest.raises(release.ReleaseError, match=reason):
        release.check_version("0.1.0", changelog, tag)


def test_a_version_may_be_tried_before_its_date_is_known(release):
    release.check_version("0.1.0", "# Changelog\n\n## [0.1.0] - unreleased\n")
    release.check_version("0.1.0", "## [0.1.0] - 2026-01-01\n", "v0.1.0")


def test_the_changelog_names_the_version_of_the_package(release):
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    release.check_version(foreword.__version__, text)


def test_all_packages_have_one_version_and_one_licence():
    licence = (ROOT / "LICENSE").read_bytes()
    folders = sorted((ROOT / "packages").iterdir())
    assert len(folders) == 5
    for folder in folders:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        project = tomllib.loads(text)["project"]
        extras = project.get("optional-dependencies", {})
        needed = [*project["dependencies"], *chain(*extras.values())]
        own = [
            name for name in needed if re.match(r"foreword(-\w+)?(\[\w+\])?==", name)
        ]
        assert project["version"] == foreword.__version__
        assert {name.partition("==")[2] for name in own} <= {foreword.__version__}
        assert (folder / "LICENSE").read_bytes() == licence


@pytest.mark.parametrize("missing", IN_WHEEL)
def test_a_wheel_without_a_file_of_the_package_is_refused(release, tmp_path, missing):
    release.check_wheel(wheel(tmp_path, IN_WHEEL), FILES, LICENCES)
    if missing.endswith("METADATA"):
        return
    others = [name for name in IN_WHEEL if name != missing]
    with pytest.raises(release.ReleaseError, match=rf"1 files are missing, {missing}"):
        release.check_wheel(wheel(tmp_path, others), FILES, LICENCES)


@pytest.mark.parametrize("missing", FILES)
def test_a_source_archive_without_a_file_is_refused(release, tmp_path, missing):
    release.check_sdist(sdist(tmp_path, FILES), FILES)
    others = [name for name in FILES if name != missing]
    with pytest.raises(release.ReleaseError, match=rf"1 files are missing, {missing}"):
        release.check_sdist(sdist(tmp_path, others), FILES)


def test_an_archive_that_no_index_takes_is_refused(release, tmp_path):
    archive = wheel(tmp_path, IN_WHEEL)
    size = archive.stat().st_size
    release.check_size(archive, size)
    with pytest.raises(release.ReleaseError, match="more than the package index"):
        release.check_size(archive, size - 1)


def test_a_command_that_fails_is_shown_with_its_errors(release, tmp_path):
    command = [sys.executable, "-c", "import sys; sys.exit('no room')"]
    with pytest.raises(release.ReleaseError, match="no room"):
        release.run(command, tmp_path)


def test_builds_that_differ_are_refused(release, tmp_path):
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        (folder / "one.whl").write_bytes(b"same")
    release.check_same(*folders)
    (folders[1] / "one.whl").write_bytes(b"other")
    with pytest.raises(
        release.ReleaseError, match=r"release one\.whl: two builds differ"
    ):
        release.check_same(*folders)
    (folders[1] / "one.whl").unlink()
    with pytest.raises(release.ReleaseError, match=r"only one build made one\.whl"):
        release.check_same(*folders)


def test_wheel_holds_the_libraries_of_its_platform(release, tmp_path):
    """Built twice from files of other times, with the same bytes."""
    pytest.importorskip("hatchling")
    made = []
    for number in range(2):
        libraries, out = tmp_path / f"built{number}", tmp_path / f"out{number}"
        libraries.mkdir()
        (libraries / "foreword-1234-avx2.so").write_bytes(b"code")
        about = {
            "FOREWORD_PLATFORM": "manylinux2014_x86_64",
            "FOREWORD_LIBRARIES": str(libraries),
            "SOURCE_DATE_EPOCH": "1700000000",
        }
        words = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
        package = ROOT / "packages" / "foreword"
        release.run([sys.executable, *words], package, about)
        made += out.iterdir()
    assert {file.name for file in made} == {
        f"foreword-{foreword.__version__}-py3-none-manylinux2014_x86_64.whl"
    }
    with zipfile.ZipFile(made[0]) as archive:
        assert archive.read("foreword/native/built/foreword-1234-avx2.so") == b"code"
    assert made[0].read_bytes() == made[1].read_bytes()
