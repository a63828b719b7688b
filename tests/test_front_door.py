"""The package as a newcomer meets it: beside folders of the same names, with types, a version and a shipped driver."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import nac_drive
from nac_drive.policies import PRETRAINED

PACKAGE = Path(nac_drive.__file__).parent


@pytest.fixture
def project(tmp_path) -> Path:
    """A folder with packages and modules of the same names as ours, none of which may be imported."""
    for name in ("envs", "policies", "data_collection", "scripts", "training", "evaluation", "tests", "benchmarks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise AssertionError('{name} of the user was imported')\n")
    for name in ("demo", "suggest", "cli", "train", "collect"):
        (tmp_path / f"{name}.py").write_text(f"raise AssertionError('{name} of the user was imported')\n")
    return tmp_path


def python(folder: Path, *arguments: str) -> str:
    """The output of a Python process that was started in `folder`."""
    result = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_a_users_own_packages_of_the_same_names_change_nothing(project):
    code = """
import nac_drive as nd
import gymnasium
env = gymnasium.make("nac_drive/CarRacing-v0", max_episode_steps=3)
driver = nd.load_driver("champion")
with nd.worker_pool(2) as pool:
    evaluation = nd.evaluate("controller", [900000], env=nd.EnvConfig(max_steps=3), pool=pool)
print(nd.rollout(env, driver, 900000).length, len(evaluation.rows), all(hasattr(nd, name) for name in nd.__all__))
"""
    (project / "user.py").write_text("if __name__ == '__main__':" + code.replace("\n", "\n    "))
    assert python(project, "user.py").split() == ["3", "1", "True"]


@pytest.mark.slow
def test_the_command_runs_beside_a_users_own_packages(project):
    assert python(project, "-m", "nac_drive", "--version") == f"nac-drive {nac_drive.__version__}\n"
    assert "champion-continuous" in python(project, "-m", "nac_drive", "completion", "bash")


def test_the_version_is_that_of_the_distribution():
    assert ProjectMetadata(str(PACKAGE.parent), PluginManager()).version == nac_drive.__version__


def test_types_and_shipped_files_are_in_the_package():
    assert (PACKAGE / "py.typed").is_file()
    for stub in ("__init__.pyi", "policies/__init__.pyi", "data_collection/__init__.pyi"):
        assert (PACKAGE / stub).is_file()
    for driver in PRETRAINED.values():
        assert driver.is_relative_to(PACKAGE)
        assert {"config.json", "model.safetensors", "README.md"} <= {file.name for file in driver.iterdir()}


def test_the_environment_is_registered_once():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.reload(nac_drive)
    spec = gymnasium.spec("nac_drive/CarRacing-v0")
    assert spec.vector_entry_point == "nac_drive.envs.vector:vector_env"
    envs = gymnasium.make_vec("nac_drive/CarRacing-v0", num_envs=2)
    try:
        assert envs.num_envs == 2
        assert envs.reset(seed=3)[0].shape == (2, 96, 96, 3)
    finally:
        envs.close()


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="clone_everything"):
        getattr(nac_drive, "clone_everything")  # noqa: B009


def modules() -> list[str]:
    """The dotted name of every module that runs nothing when it is imported."""
    paths = (file.relative_to(PACKAGE.parent).with_suffix("") for file in find(PACKAGE, ".py"))
    names = {".".join(path.parts).removesuffix(".__init__") for path in paths if path.name != "__main__"}
    return sorted(names)


def find(folder: Path, suffix: str) -> Iterator[Path]:
    """Yield the files of a folder, those behind links too."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from find(path, suffix)
        elif path.suffix == suffix:
            yield path


def test_every_module_is_imported_by_its_dotted_name():
    names = modules()
    assert {"nac_drive.experiments.reproduce", "nac_drive.envs.rollout", "nac_drive.data_collection.collect"} < {*names}
    for name in names:
        imported: dict[str, Any] = {}
        try:
            exec(f"import {name} as module", imported)
        except ModuleNotFoundError as error:
            if error.name == "triton":  # it comes with torch for GPUs alone
                continue
            raise
        assert imported["module"] is sys.modules[name]
        assert pkgutil.resolve_name(name) is sys.modules[name]  # how mock.patch finds it


@pytest.mark.parametrize(
    ("package", "name", "home"),
    [
        ("nac_drive", "reproduce", "nac_drive.experiments.reproduce"),
        ("nac_drive.data_collection", "collect", "nac_drive.data_collection.collect"),
        ("nac_drive.envs", "rollout", "nac_drive.envs.rollout"),
        ("nac_drive.cli", "main", "nac_drive.cli.main"),
    ],
)
def test_a_function_with_the_name_of_a_module_is_called_by_that_name(package, name, home):
    public = getattr(importlib.import_module(package), name)
    function = vars(importlib.import_module(home))[name]
    assert inspect.signature(public) == inspect.signature(function)
    assert inspect.getdoc(public) == inspect.getdoc(function)
    assert pickle.loads(pickle.dumps(public)) is public
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'nonsense'"):
        public(nonsense=1)


def test_what_can_be_called_is_called_by_its_public_name():
    for name in nac_drive.__all__:
        value = getattr(nac_drive, name)
        assert (
            callable(value)
            or name in {"CORES", "ENCODERS", "NAC_VARIANTS", "PERTURBATIONS", "REPRODUCTIONS"}
            or (value is sys.modules.get(f"nac_drive.{name}"))
        )


@pytest.mark.parametrize(
    "code",
    [
        "import nac_drive.data_collection.collect as module; from nac_drive.data_collection import collect as function",
        "from nac_drive.data_collection import collect as function; import nac_drive.data_collection.collect as module",
    ],
)
def test_the_first_import_does_not_decide_which_is_meant(code, tmp_path):
    assert python(tmp_path, "-c", f"{code}; print(module.collect.__name__, callable(function))") == "collect True\n"
