"""What people who join read and fill in names files, versions and commands that exist."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from foreword.cli.app import app

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PATH = re.compile(
    r"`((?:foreword\w*|tests|docs|deploy|recipes|website|\.github)/[^` ]*)`"
)


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def fields(form: Path) -> dict[str, dict[str, Any]]:
    """Return the fields of a form by their ids."""
    body = yaml.safe_load(form.read_text(encoding="utf-8"))["body"]
    return {field["id"]: field for field in body}


def test_the_map_of_contributing_names_paths_that_exist() -> None:
    table = [line for line in text("CONTRIBUTING.md").splitlines() if "/` |" in line]
    named = [PATH.findall(line) for line in table]
    assert len(named) >= 15
    assert all(len(paths) == 2 for paths in named)
    assert [path for paths in named for path in paths if not is_there(path)] == []


def is_there(path: str) -> bool:
    """Return whether a path exists, in the repository or in a package."""
    roots = [ROOT, *ROOT.glob("packages/*/src")]
    return any((root / path).exists() for root in roots)


@pytest.mark.parametrize(
    "name", ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md"]
)
def test_links_and_paths_lead_somewhere(name) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text(name))
    paths = PATH.findall(text(name))
    assert [path for path in (*links, *paths) if not is_there(path)] == []


def test_targets_that_contributing_names_are_made() -> None:
    named = re.findall(
        r"\bmake ([a-z-]+)", re.sub(r"\s+", " ", text("CONTRIBUTING.md"))
    )
    made = set(re.findall(r"^([a-z][a-z-]*):", text("Makefile"), re.MULTILINE))
    assert {"venv", "check", "test", "release"} <= set(named)
    assert set(named) <= made


def test_times_of_contributing_and_make_agree() -> None:
    (time,) = re.findall(r"make test +# .*: (.+)", text("CONTRIBUTING.md"))
    (stated,) = re.findall(r"^test:.*## .*: (.+)", text("Makefile"), re.MULTILINE)
    assert time == stated


def test_the_citation_has_the_version_of_the_package() -> None:
    project = tomllib.loads(text("packages/foreword/pyproject.toml"))["project"]
    citation = yaml.safe_load(text("CITATION.cff"))
    assert citation["version"] == project["version"]
    assert citation["license"] in project["license"]


def test_hooks_have_the_pinned_versions_and_run_the_rules() -> None:
    repos = yaml.safe_load(text(".pre-commit-config.yaml"))["repos"]
    ruff, local = repos
    (pinned,) = re.findall(r"^ruff==(\S+)$", text("constraints.txt"), re.MULTILINE)
    assert ruff["rev"] == f"v{pinned}"
    for hook in local["hooks"]:
        (rules,) = re.findall(r"tests/rules/\S+\.py", hook["entry"])
        assert (ROOT / rules).is_file()


def test_forms_ask_for_what_helps_to_answer() -> None:
    assert {form.stem for form in FORMS} == {"bug", "slow", "feature", "config"}
    (bug,) = [form for form in FORMS if form.stem == "bug"]
    asked = fields(bug)
    assert "foreword env --json" in asked["env"]["attributes"]["label"]
    assert asked["env"]["validations"]["required"] is True
    assert "--record" in asked["recording"]["attributes"]["description"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_forms_name_commands_and_options_that_exist(form) -> None:
    commands = typer.main.get_command(app).commands
    found = re.findall(r"`foreword (\w+)([^`]*)`", form.read_text(encoding="utf-8"))
    assert found or form.stem == "config"
    for name, words in found:
        command = commands[name]
        options = {
            opt
            for one in (command, *getattr(command, "commands", {}).values())
            for param in one.params
            for opt in param.opts
        }
        assert set(re.findall(r"--[a-z-]+", words)) <= options
