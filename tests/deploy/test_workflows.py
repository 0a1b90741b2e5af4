"""Workflows call what the Makefile has, with the versions that the package supports."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted(FOLDER.glob("*.yml"))
}
TEXT = (ROOT / "packages/foreword/pyproject.toml").read_text(encoding="utf-8")
PROJECT = tomllib.loads(TEXT)["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PYTHONS = [
    name.rpartition(" ")[2]
    for name in PROJECT["classifiers"]
    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", name)
]


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def targets() -> set[str]:
    """Return the targets of the Makefile."""
    return set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))


def pinned(package: str) -> str:
    """Return the version in constraints.txt."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (version,) = re.findall(rf"^{package}==(\S+)$", text, re.MULTILINE)
    return version


def required(package: str) -> SpecifierSet:
    """Return the versions that the package may have."""
    found = map(Requirement, PROJECT["dependencies"])
    (wanted,) = [one for one in found if one.name == package]
    return wanted.specifier


def lowest(versions: SpecifierSet) -> Version:
    (bound,) = [one.version for one in versions if one.operator == ">="]
    return Version(bound)


def matrix() -> dict[str, dict[str, str]]:
    """Return the jobs of the checks, by name."""
    job = WORKFLOWS["check"]["jobs"]["check"]
    return {one["name"]: one for one in job["strategy"]["matrix"]["include"]}


def test_there_are_workflows() -> None:
    assert set(WORKFLOWS) == {"check", "pages", "release"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_targets_that_a_workflow_makes_exist(name) -> None:
    commands = [step["run"] for step in steps(WORKFLOWS[name]) if "run" in step]
    made = {word for command in commands for word in command.split()[1:]}
    assert all(command.split()[0] == "make" for command in commands)
    assert made
    assert made <= targets()


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_have_versions_and_permissions_are_few(name) -> None:
    workflow = WORKFLOWS[name]
    actions = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert all(re.fullmatch(r"[\w./-]+@v[\d.]+", action) for action in actions)
    assert workflow["permissions"] == {"contents": "read"}
    # a job that may write runs no code of this repository
    for job in workflow["jobs"].values():
        if "permissions" in job:
            assert not any("run" in step for step in job["steps"])
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"] == {"persist-credentials": False}


def test_checks_run_what_a_contributor_runs() -> None:
    commands = [step["run"] for step in steps(WORKFLOWS["check"]) if "run" in step]
    assert commands == [
        f"make {target}" for target in ("venv", "check", "test", "docs")
    ]


def test_every_supported_python_has_a_job_with_the_pinned_versions() -> None:
    assert Version(PYTHONS[0]) == lowest(SpecifierSet(PROJECT["requires-python"]))
    pinned_jobs = {f"Python {python}": python for python in PYTHONS}
    for name, python in pinned_jobs.items():
        assert matrix()[name] == {"name": name, "python": python}
    assert set(matrix()) == {*pinned_jobs, "lowest", "highest"}


def test_lowest_versions_are_the_bounds_of_the_package() -> None:
    job = matrix()["lowest"]
    assert job["python"] == PYTHONS[0]
    assert Version(job["torch"]) == lowest(required("torch"))
    assert Version(job["transformers"]) == lowest(required("transformers"))


def test_highest_versions_are_within_the_bounds() -> None:
    job = matrix()["highest"]
    assert job["python"] == PYTHONS[-1]
    (torch,) = re.findall(r"^PINNED_TORCH := (.+)$", MAKEFILE, re.MULTILINE)
    assert job["torch"] == torch
    assert torch in required("torch")
    allowed = SpecifierSet(f"=={job['transformers']}")
    assert pinned("transformers") in allowed
    (bound,) = [one for one in required("transformers") if one.operator == "<"]
    assert f"{Version(bound.version).major - 1}.999" in allowed
    assert bound.version not in allowed


def test_versions_reach_the_makefile() -> None:
    environment = WORKFLOWS["check"]["jobs"]["check"]["env"]
    settable = re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE)
    assert set(environment) <= set(settable)
    for name in ("torch", "transformers"):
        assert environment[name.upper()] == f"${{{{ matrix.{name} }}}}"


def test_a_tag_is_published_by_the_trusted_job_alone() -> None:
    workflow = WORKFLOWS["release"]
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML reads `on` as true
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert "permissions" not in build
    assert publish["permissions"] == {"id-token": "write"}
    attest = workflow["jobs"]["attest"]
    assert attest["permissions"] == {"attestations": "write", "id-token": "write"}
    assert (attest["needs"], publish["needs"]) == ("build", "attest")
    tags = [step.get("env") for step in build["steps"] if "env" in step]
    assert tags == [{"TAG": "${{ github.ref_name }}", "TWICE": "1"}]


def test_pages_are_taken_from_where_they_are_built() -> None:
    (uploaded,) = [
        step["with"]["path"]
        for step in steps(WORKFLOWS["pages"])
        if step.get("uses", "").startswith("actions/upload-pages-artifact@")
    ]
    assert uploaded == "build/site"
