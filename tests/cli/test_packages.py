"""Commands come from packages, and one whose package is missing says so."""

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner

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
