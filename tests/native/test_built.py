"""Libraries that a wheel brings are chosen by the processor; nothing is compiled."""

import ctypes
import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from foreword.native import built, compiler

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None, reason="there is no C compiler"
)


def library(folder: Path, stem: str, name: str) -> None:
    """Write a library as the recipe names it."""
    file = folder / built.file_name(stem, built.digest(), name)
    shutil.copyfile(folder.parent / f"{stem}.so", file)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> list[Path]:
    """Two C files, compiled once."""
    folder = tmp_path_factory.mktemp("compiled")
    made = [folder / f"{stem}.so" for stem in ("levels", "sampling")]
    for file in made:
        source = built.SOURCES / f"{file.stem}.c"
        words = ["cc", "-O0", "-shared", "-fPIC", str(source), "-o", str(file), "-lm"]
        subprocess.run(words, check=True, timeout=120)
    return made


@pytest.fixture
def wheel(compiled, tmp_path, monkeypatch) -> Path:
    """The folder of an installed wheel's libraries, where no compiler would be found."""
    folder = tmp_path / "built"
    for file in compiled:
        shutil.copy(file, tmp_path)
    folder.mkdir()
    library(folder, "levels", "any")
    monkeypatch.setattr(built, "BUILT", folder)
    monkeypatch.setattr(compiler, "_warned", set())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", "/nonexistent")
    for name in ("FOREWORD_CFLAGS", "FOREWORD_INSTRUCTIONS"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture(scope="module")
def recipe() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "recipes"))
        yield importlib.import_module("wheels")
        sys.modules.pop("wheels", None)


def runnable(wheel: Path) -> list[str]:
    (chooser,) = wheel.glob("levels-*")
    return built._runnable(chooser)


def sampling() -> ctypes.CDLL | str:
    return compiler.compiled(built.SOURCES / "sampling.c")


def test_fastest_library_that_runs_is_loaded(wheel, tmp_path, monkeypatch):
    names = runnable(wheel)
    library(wheel, "sampling", names[-1])
    library(wheel, "sampling", "of-another-processor")
    assert built.instructions(sampling()) == names[-1]
    library(wheel, "sampling", names[0])
    found = sampling()
    assert built.instructions(found) == names[0]
    assert hasattr(found, "foreword_gumbel")
    monkeypatch.setenv("FOREWORD_INSTRUCTIONS", names[-1])
    assert built.instructions(sampling()) == names[-1]
    assert not (tmp_path / "cache").exists()


def change_a_header(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(wheel, "sampling", runnable(wheel)[0])
    changed = Path(shutil.copytree(built.SOURCES, wheel.parent / "csrc"))
    (changed / "noise.h").write_text("/* changed */\n", encoding="utf-8")
    monkeypatch.setattr(built, "SOURCES", changed)


def choose_another(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREWORD_INSTRUCTIONS", "of-another-processor")
    library(wheel, "sampling", "of-another-processor")


def damage(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = wheel / built.file_name("sampling", built.digest(), runnable(wheel)[0])
    file.write_bytes(b"garbage")


def build_none(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(wheel, "sampling", "of-another-processor")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (change_a_header, "the C files were changed after their libraries were built"),
        (choose_another, "'of-another-processor', which this processor does not run"),
        (damage, r"the library of sampling\.c cannot be loaded"),
        (build_none, r"this wheel has no library of sampling\.c for this processor"),
    ],
)
def test_where_no_library_fits_torch_computes_and_says_so(
    wheel, monkeypatch, change, why
):
    change(wheel, monkeypatch)
    with pytest.warns(RuntimeWarning, match=why) as warned:
        reason = sampling()
    assert re.search(why, str(reason))
    assert "PyTorch computes instead" in str(warned[0].message)


def test_flags_ask_for_a_compiler(wheel, tmp_path, monkeypatch):
    library(wheel, "sampling", runnable(wheel)[0])
    monkeypatch.setenv("FOREWORD_CFLAGS", "-O0")
    monkeypatch.setenv("CC", "cc")
    found = sampling()
    assert built.instructions(found) is None
    assert hasattr(found, "foreword_gumbel")
    assert (tmp_path / "cache").exists()


def test_a_choice_without_built_libraries_is_refused(wheel, monkeypatch):
    monkeypatch.setattr(built, "BUILT", wheel.parent / "none")
    monkeypatch.setenv("FOREWORD_INSTRUCTIONS", "avx2")
    with pytest.warns(RuntimeWarning, match="chooses among libraries that a wheel"):
        assert isinstance(sampling(), str)


def test_recipe_compiles_each_instruction_set_that_is_chosen_from(recipe):
    text = (built.SOURCES / "levels.c").read_text(encoding="utf-8")
    chosen = set(re.findall(r'\{"([a-z0-9-]+)", \{', text))
    compiled = set(recipe.X86) | set(recipe.ARM)
    assert chosen == compiled
    assert all(
        set(platform.instructions) <= compiled for platform in recipe.PLATFORMS.values()
    )


def test_recipe_names_every_file_that_is_loaded(recipe):
    platform = recipe.PLATFORMS["manylinux2014_x86_64"]
    files = {words[-2] for words in recipe.commands(platform)}
    digest = built.digest()
    assert built.file_name("levels", digest, "any") in files
    for path in sorted((ROOT / "packages").rglob("src/**/*.py")):
        for stem in re.findall(r'SOURCES / "(\w+)\.c"', path.read_text("utf-8")):
            assert built.file_name(stem, digest, "avx512-bf16") in files
    assert len(files) == 1 + len(recipe.STEMS) * len(recipe.X86)
