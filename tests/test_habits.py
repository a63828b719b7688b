"""Files that hosts and tools read: they parse, name what exists, and pin what constraints.txt pins."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
FORMS = sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

workflows = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def parsed(path: Path) -> dict[Any, Any]:
    return yaml.safe_load(path.read_text())


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in parsed(path)["jobs"].values() for step in job["steps"]]


def paths(text: str) -> list[str]:
    """Paths of the repository that a text names."""
    folders = "nac_drive|benchmarks|docs|scripts|tests"
    return re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*\w\.(?:py|md)|\w+\.(?:md|toml|cff))\b", text)


@workflows
def test_a_workflow_names_targets_and_files_that_exist(path):
    commands = [step["run"] for step in steps(path) if "run" in step]
    named = {target for command in commands for target in re.findall(r"\bmake ([a-z]+)", command)}
    assert named <= TARGETS
    assert not [name for command in commands for name in paths(command) if not (ROOT / name).exists()]
    assert commands
    assert all(re.search(r"@v?\d|@release/", step["uses"]) for step in steps(path) if "uses" in step)


@workflows
def test_jobs_wait_for_jobs_that_exist(path):
    jobs = parsed(path)["jobs"]
    needed = {name for job in jobs.values() for name in ([job["needs"]] if "needs" in job else [])}
    assert needed <= set(jobs)


def test_pushes_and_pull_requests_are_tested_on_linux_and_macos_with_every_python():
    workflow = parsed(ROOT / ".github/workflows/test.yml")
    assert {"push", "pull_request"} <= set(workflow[True])  # YAML reads `on` as true
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert {system.partition("-")[0] for system in matrix["os"]} == {"ubuntu", "macos"}
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert matrix["python"] == [name.split()[-1] for name in classifiers if re.search(r"Python :: 3\.\d+", name)]


def test_a_tag_releases_wheels_of_both_systems_and_a_source_distribution():
    workflow = parsed(ROOT / ".github/workflows/release.yml")
    assert workflow[True]["push"] == {"tags": ["v*"]}
    build = "".join(step.get("run", "") for step in workflow["jobs"]["build"]["steps"])
    assert {"manylinux", "macosx"} <= set(re.findall(r"[a-z]{6,}", build))
    assert "--sdist" in build


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_asks_what_its_host_can_show(path):
    form = parsed(path)
    if path.name == "config.yml":
        assert set(form) == {"blank_issues_enabled"}
        return
    assert {"name", "description", "body"} <= set(form)
    assert all(field["type"] == "textarea" and field["attributes"]["label"] for field in form["body"])
    assert len({field["id"] for field in form["body"]}) == len(form["body"])


def test_hooks_have_the_versions_of_the_tests():
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    hooks = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    revisions = {repo["repo"].rpartition("/")[2]: repo.get("rev") for repo in hooks}
    assert revisions["ruff-pre-commit"] == f"v{pinned['ruff']}"
    local = [hook for repo in hooks if repo["repo"] == "local" for hook in repo["hooks"]]
    assert [hook["entry"] for hook in local] == [".venv/bin/pyright"]
    uses = "".join(step.get("uses", "") for step in steps(ROOT / ".github/workflows/test.yml"))
    assert f"crate-ci/typos@{revisions['typos']}" in uses


@pytest.mark.parametrize("name", ["SECURITY.md", ".github/pull_request_template.md", "Dockerfile"])
def test_a_file_for_strangers_names_files_that_exist(name):
    text = (ROOT / name).read_text()
    assert not [path for path in paths(text) if not (ROOT / path).exists()]
    assert set(re.findall(r"make ([a-z-]+)", text)) <= TARGETS


def test_the_version_is_the_same_everywhere():
    version = re.search(r'__version__ = "(.+)"', (ROOT / "nac_drive/__init__.py").read_text())
    assert version
    assert parsed(ROOT / "CITATION.cff")["version"] == version[1]
    release = re.search(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert release
    assert release[1] == version[1]
