"""A plug-in is imported if the user names it."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nac_drive as nd
from nac_drive import plugins
from nac_drive.cli.main import main
from nac_drive.parallel.processes import Workers
from nac_drive.plugins import VARIABLE, load_plugin, load_plugins, named_object
from nac_drive.policies import load_driver, save_driver
from tests.own_parts import forgotten

MODEL = """
from torch import nn

class Doubling(nn.Module):
    def __init__(self, input_size, output_size):
        super().__init__()
        self.layer = nn.Linear(input_size, output_size)

    def forward(self, x):
        return 2 * self.layer(x)
"""

PARTS = '''
from torch import nn

import nac_drive as nd
from nac_drive.envs.perturbations.images import Brightness
from nac_drive.evaluation.metric import Metric
from nac_drive.evaluation.metrics import METRICS

nd.PERTURBATIONS["dusk"] = (Brightness(1.5), Brightness(2.5))
METRICS["seconds"] = Metric("seconds", lambda trace: 0.02 * len(trace.steps), kind=float, unit="s", doc="Time.")

class Means(nn.Module):
    """The mean colour of a frame."""

    def __init__(self, frame_shape, features, dropout):
        super().__init__()
        self.layer = nn.Linear(3, features)

    def forward(self, frames):
        return self.layer(frames.float().mean(dim=(-3, -2)) / 255)
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder. What a test loads is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    with forgotten():
        yield tmp_path


def test_a_reference_is_a_name_that_registries_know(here: Path) -> None:
    (here / "helper.py").write_text("SCALE = 3\n")
    (here / "mine.py").write_text(f"import helper\n{MODEL}")
    assert named_object("mine.py:Doubling") == "mine.Doubling"
    assert "mine.Doubling" in nd.CORES
    assert load_plugin("mine.py") is load_plugin(here / "mine.py")  # imported once
    assert os.environ[VARIABLE] == str(here / "mine.py")
    assert named_object("torch.nn:GRU") == "torch.nn.GRU"
    for word in ("lstm", "frame-drop:1", "HOST:6379", "a/b"):
        if word != "HOST:6379":
            assert named_object(word) == word


def test_a_folder_may_have_the_character_between_two_plugins(here: Path) -> None:
    """As 2026-11-28T10:00 does."""
    folder = here / f"10{os.pathsep}00"
    folder.mkdir()
    for file in (folder / "mine.py", here / "other.py"):
        file.write_text(MODEL)
    load_plugin(folder / "mine.py")
    load_plugin("other.py")
    assert os.environ[VARIABLE] == os.pathsep.join([str(folder / "mine.py"), str(here / "other.py")])
    plugins._loaded.clear()
    for name in ("mine", "other"):
        del sys.modules[name]
    load_plugins(installed=False)
    assert [f"{name}.Doubling" in nd.CORES for name in ("mine", "other")] == [True, True]


def test_a_file_that_a_script_has_imported_is_its_plugin(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "mine.py").write_text(MODEL)
    monkeypatch.syspath_prepend(here)
    module = importlib.import_module("mine")
    load_plugin("mine.py")
    assert sys.modules["mine"] is module
    assert "mine.Doubling" in nd.CORES


def test_bad_plugins_are_named_in_one_line(here: Path) -> None:
    (here / "mine.py").write_text(MODEL)
    (here / "json.py").write_text("")
    (here / "torch.py").write_text("")
    (here / "two-words.py").write_text("")
    (here / "broken.py").write_text("x = 1\nraise RuntimeError('no licence')\n")
    (here / "needy.py").write_text("import a_b_c\n")
    cases = [
        ("missing.py", FileNotFoundError, r"there is no file .*missing\.py"),
        ("missing", FileNotFoundError, "there is no module 'missing'"),
        ("mine", None, ""),
        ("json.py", ValueError, r"another module has the name of json\.py; rename"),
        ("torch.py", ValueError, r"another module has the name of torch\.py"),
        ("two-words.py", ValueError, r"must be a Python name.*rename"),
        (
            "needy.py",
            ValueError,
            r"needy\.py:1: ModuleNotFoundError: No module named 'a_b_c'; install the package that",
        ),
        ("broken.py", ValueError, r"broken\.py cannot be imported: broken\.py:2: RuntimeError: no licence\.$"),
    ]
    for source, kind, message in cases:
        if kind is None:
            load_plugin(source)
            continue
        with pytest.raises(kind, match=message):
            load_plugin(source)
    assert "broken" not in sys.modules
    with pytest.raises(ValueError, match=r"mine:Doublin: mine defines no 'Doublin'\. Did you mean 'Doubling'\?"):
        named_object("mine:Doublin")


def test_a_folder_imports_nothing(here: Path, tmp_path: Path) -> None:
    (here / "mine.py").write_text(MODEL)
    (here / "evil.py").write_text(f"open({str(here / 'ran')!r}, 'w').close()\n{MODEL}")
    config = nd.DriverConfig(core=named_object("mine.py:Doubling"), frame_shape=(16, 16, 3), d_model=8, dense=4)
    save_driver("run", nd.Driver(config))
    saved = json.loads(Path("run/config.json").read_text())
    (version,) = saved["meta"]["plugins"]
    assert (version["module"], version["file"]) == ("mine", "mine.py")
    assert version["version"].startswith("sha256 ")
    assert load_driver("run").config == config
    for core, plugin in (
        ("evil.Doubling", "evil"),
        ("evil.Doubling", "mine"),
        ("os.system", "os"),
        ("torch.nn.LSTM", ""),
    ):
        saved["driver"]["core"] = core
        named = {"module": plugin, "file": f"{plugin}.py", "version": ""}
        saved["meta"]["plugins"] = [named] if plugin else ["x", 3, {"a": []}, {**named, "file": []}]
        Path("run/config.json").write_text(json.dumps(saved))
        with pytest.raises(ValueError, match=r"pass --plugin|is unknown"):
            load_driver("run")
        assert main(["evaluate", "--driver", "run", "--tracks", "1", "--out", "new"]) == 2
    assert not (here / "ran").exists()
    assert "evil" not in sys.modules


def test_an_error_names_the_plugin_to_pass(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(MODEL + "\nimport nac_drive as nd\nnd.register_core('double', Doubling)\n")
    load_plugin("mine.py")
    config = nd.DriverConfig(core="double", frame_shape=(96, 96, 3), d_model=8, dense=4)
    save_driver("run", nd.Driver(config))
    arguments = ["export", "--driver", "run", "--out", "run.pt2"]
    assert main(arguments) == 0
    del plugins._loaded["mine"], sys.modules["mine"], nd.CORES["double"]
    os.environ[VARIABLE] = ""
    assert main([*arguments[:-1], "other.pt2"]) == 2
    line = capsys.readouterr().err
    assert "core 'double': it comes from the plug-in mine: pass --plugin mine.py." in line
    assert main([*arguments[:-1], "other.pt2", "--plugin", "mine.py"]) == 0
    assert main(["export", "--plugin"]) == 2
    assert "--plugin: needs a Python file or a module" in capsys.readouterr().err


def test_an_error_names_an_encoder_that_is_missing(here: Path) -> None:
    """It named the core, which is the package's."""
    Path("parts.py").write_text(PARTS)
    encoder = named_object("parts.py:Means")
    save_driver("run", nd.Driver(nd.DriverConfig("lstm", encoder=encoder, frame_shape=(16, 16, 3), d_model=8)))
    del plugins._loaded["parts"], sys.modules["parts"], nd.ENCODERS[encoder]
    os.environ[VARIABLE] = ""
    with pytest.raises(ValueError, match=r"be built from it: encoder 'parts\.Means': it comes from the plug-in parts:"):
        load_driver("run")


def _parameters(name: str) -> tuple[int, str]:
    core = nd.policies.build_core(name, 4, 4)
    return sum(parameter.numel() for parameter in core.parameters()), type(core.module).__module__  # type: ignore[union-attr]


def test_workers_know_the_parts_of_their_parent(here: Path) -> None:
    """A class of a notebook is shipped."""

    class Local(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.layer = nn.Linear(inputs, outputs, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    (here / "mine.py").write_text(MODEL)
    named_object("mine.py:Doubling")
    nd.register_core("local", Local)
    with Workers(1) as pool:
        assert list(pool.imap(_parameters, ["mine.Doubling", "local"])) == [(20, "mine"), (16, __name__)]


def test_a_plugin_adds_parts_of_every_kind(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "parts.py").write_text(PARTS)
    nd.Demonstrations.from_episodes(
        "data",
        [{"observations": torch.zeros(40, 96, 96, 3, dtype=torch.uint8).numpy(), "actions": [0] * 40}] * 2,
        dt=0.02,
    )
    small = (
        "--set",
        "driver.d_model=8",
        "driver.dense=4",
        "--epochs",
        "1",
        "--validation-tracks",
        "5",
        "--core",
        "cnn",
    )
    command = ["train", "data", "--out", "run", "--encoder", "parts.py:Means", *small]
    assert main([*command, "--augment", "dusk:2"]) == 0, capsys.readouterr().err
    arguments = ["evaluate", "--driver", "run", "--tracks", "5", "--baseline", "none", "--perturb", "dusk:1"]
    assert main([*arguments, "--out", "new"]) == 0, capsys.readouterr().err
    (row,) = map(json.loads, Path("new/rows.jsonl").read_text().splitlines())
    assert row["seconds"] == pytest.approx(0.02 * row["length"])
    assert row["perturbation"] == "dusk:1"


def test_installed_packages_are_plugins_by_their_entry_point(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "mine.py").write_text(MODEL + "\nimport nac_drive as nd\nnd.CORES['double'] = nd.CORES['lstm']\n")
    info = here / "own-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[nac_drive]\nown = mine\n")
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(plugins, "_entry_points_loaded", False)
    assert "double" in nd.CORES
    assert "mine.Doubling" in nd.CORES
    assert os.environ[VARIABLE] == ""  # workers find the entry point themselves
