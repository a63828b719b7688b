"""The simulator runs beside three packages alone, which docs/simulator.md names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/simulator.md").read_text()

BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""

DRIVE = """
import hashlib
import json

import gymnasium as gym
import numpy as np

import nac_drive

NAME = "nac_drive/CarRacing-v0"


def digest(*values):
    return hashlib.sha256(b"".join(np.ascontiguousarray(value).tobytes() for value in values)).hexdigest()


def driven(env, seed):
    actions = np.random.default_rng(5).uniform((-1, 0, 0), (1, 1, 0.3), (50, *env.action_space.shape))
    results = [env.reset(seed=seed)[:1]]
    results += [env.step(action)[:4] for action in actions.astype(np.float32)]
    env.close()
    return [digest(*outcome) for outcome in results]


words = {"continuous": True, "lap_complete_percent": 0.9, "domain_randomize": True}
drives = {
    "one": driven(gym.make(NAME, continuous=True), 3),
    "words of gymnasium": driven(gym.make(NAME, render_mode="rgb_array", **words), 4),
    "seat": driven(nac_drive.make_env(nac_drive.EnvConfig("continuous", view="seat")), 3),
    "perturbed": driven(gym.make(NAME, continuous=True, perturb="line:2+gap:3+weak-tyres:2"), 3),
    "vector": driven(gym.make_vec(NAME, num_envs=2, continuous=True), 3),
}
for name in sorted(nac_drive.PERTURBATIONS):
    gym.make(NAME, perturb=f"{name}:1").reset(seed=3)
"""


def documented() -> list[str]:
    """The requirements of the page's second `pip install`."""
    alone, beside = re.findall(r"^    pip install (.+)$", TEXT, re.MULTILINE)
    assert alone == "--no-deps ."
    return [quoted.strip('"') for quoted in beside.split(" ")]


def importable(requirements: list[str]) -> set[str]:
    """Names that can be imported beside these requirements."""
    waiting, names = [Requirement(text) for text in requirements], set()
    while waiting:
        requirement = waiting.pop()
        names.add(canonicalize_name(requirement.name))
        for text in requires(requirement.name) or ():
            below = Requirement(text)
            extras = requirement.extras or {""}
            if below.marker is None or any(below.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(below)
    return {
        module for module, owners in packages_distributions().items()
        if names & {canonicalize_name(owner) for owner in owners}
    }  # fmt: skip


def run_alone(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    allowed = {"nac_drive", *importable(documented())}
    code = f"ALLOWED = {allowed}\n{BLOCKER}\n{code}"
    return subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_page_names_three_packages_with_the_versions_that_this_package_requires():
    assert len(documented()) == 3
    project = (ROOT / "pyproject.toml").read_text()
    for requirement in documented():
        assert f'    "{requirement}",\n' in project


def test_the_blocker_blocks():
    names = ("torch", "stable_baselines3", "matplotlib", "h5py", "tyro", "rich", "scipy", "lightning_fabric", "av")
    found = run_alone(f"from importlib.util import find_spec\nfor name in {names}:\n    try:\n        find_spec(name)\n"
                      "    except ModuleNotFoundError as error:\n        print(error.name)")  # fmt: skip
    assert tuple(found.stdout.split()) == names


def test_it_drives_as_beside_all_packages():
    child = run_alone(f"{DRIVE}\nprint(json.dumps(drives))")
    assert child.returncode == 0, child.stderr
    here: dict[str, Any] = {}
    exec(DRIVE, here)
    alone = json.loads(child.stdout)
    assert alone == here["drives"]
    assert all(len({*frames}) == len(frames) for frames in alone.values())


def test_the_command_line_names_what_it_needs():
    child = run_alone("from nac_drive.__main__ import main\nsys.exit(main())", "--help")
    assert child.returncode == 2
    assert (
        child.stderr == "nac-drive: the command line needs tyro, which is not installed; run pip install nac-drive.\n"
    )


def test_the_front_door_names_what_it_needs():
    child = run_alone("""import nac_drive as nd
for name in nd.__all__:
    try:
        getattr(nd, name)
    except ModuleNotFoundError as error:
        print(name, error.name, error, sep="|")""")
    assert child.returncode == 0, child.stderr
    missing = {name: rest for name, *rest in (line.split("|") for line in child.stdout.splitlines())}
    assert {"evaluate", "train", "Demonstrations", "load_driver"} <= missing.keys()
    assert not {"make_env", "EnvConfig", "Track"} & missing.keys()
    for name, (package, sentence) in missing.items():
        assert sentence == f"nac_drive.{name} needs {package}, which is not installed; run pip install nac-drive."
