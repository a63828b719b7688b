"""The arrows between the packages, and the front door."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nac_drive

REPOSITORY = Path(__file__).parents[1]
OURS = {"envs", "policies", "data_collection", "nac_drive", "scripts", "tests", "benchmarks"}
SIMULATION = {"gymnasium", "stable_baselines3", "cv2", "Box2D"}

# What a package may import of ours, and what it may not import of others'.
ARROWS = {
    "envs": ({"envs"}, {"torch", "stable_baselines3"}),
    "policies": ({"policies"}, SIMULATION),
    "data_collection": ({"data_collection", "envs", "policies"}, set()),
    "nac_drive": ({"nac_drive", "data_collection", "envs", "policies"}, set()),
    "scripts": ({"nac_drive"}, set()),
}


def imported(source: str) -> set[str]:
    """Top-level names of every import, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("package", ARROWS)
def test_a_package_imports_only_what_its_arrow_allows(package):
    allowed, forbidden = ARROWS[package]
    for path in (REPOSITORY / package).rglob("*.py"):
        names = imported(path.read_text())
        assert names & OURS <= allowed, path
        assert not names & forbidden, path


def test_the_walk_sees_imports_wherever_they_stand():
    assert imported("import torch.nn as nn\ndef f():\n    from nac_drive.envs.rollout import Step\n") == {
        "torch",
        "envs",
    }


def test_importing_envs_or_policies_loads_nothing_of_the_other():
    for package, absent in (("envs", "torch policies data_collection"), ("policies", "gymnasium envs data_collection")):
        code = f"import sys, {package}; print(*[name for name in {absent.split()} if name in sys.modules])"
        told = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        assert told.stdout.split()[-1:] == [], package


def test_every_public_name_is_there_once():
    assert [name for name in nac_drive.__all__ if not hasattr(nac_drive, name)] == []
    assert len(set(nac_drive.__all__)) == len(nac_drive.__all__)
    assert {"NAC", "Driver", "make_env", "Demonstrations", "clone", "evaluate"} <= set(nac_drive.__all__)
