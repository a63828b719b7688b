"""A folder with the worst of names goes through every command: no file, table or message holds a mark of it."""

from __future__ import annotations

import io
import re
import shutil
from html import unescape
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from nac_drive.cli.progress import show_progress
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.events import Event
from nac_drive.experiments.page import inspect_command
from nac_drive.policies import Driver, DriverConfig, save_driver
from nac_drive.storage.names import shown
from tests.commands import call, refused
from tests.hostile_names import NAMES, WORST, hidden, words_of
from tests.nac_drive.experiments.test_page import ReadPage

BASE = ("--workers", "1")
TEXTS = ("*.html", "*.md", "*.json", "*.jsonl", "*.txt", "*.yaml")
FIGURES = {
    "evaluate": {"figure.png"},
    "stress": {"heatmap.png", "curves.png"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder whose own name is bad too, with a driver of three frames."""
    path = tmp_path_factory.mktemp("names") / WORST
    env = {"control": "discrete", "mask_bar": False, "max_steps": 3}
    save_driver(path / WORST, Driver(DriverConfig(core="lstm", d_model=8)), env=env)
    return path


@pytest.fixture
def here(folder, tmp_path, monkeypatch) -> Path:
    """The working directory, which holds that folder."""
    shutil.copytree(folder, tmp_path / WORST)
    monkeypatch.chdir(tmp_path)
    return tmp_path


DRIVER = f"{WORST}/{WORST}"
COMMANDS = {
    "evaluate": (
        "evaluate", "--driver", DRIVER, "--baseline", "none", "--tracks", "5",
        "--out", f"{WORST}/out", *BASE,
    ),
    "stress": (
        "stress", "--drivers", DRIVER, "--perturb", "gap:1", "--tracks", "5",
        "--out", f"{WORST}/out", *BASE,
    ),
    "inspect": ("inspect", "--driver", DRIVER, "--track", "5", "--out", f"{WORST}/out"),
    "video": ("watch", "--driver", DRIVER, "--track", "5", "--video", f"{WORST}/x.mp4"),
    "page": ("watch", "--driver", DRIVER, "--track", "5", "--html", f"{WORST}/x.html"),
    "collect": (
        "collect", "--driver", DRIVER, "--episodes", "1", "--out", f"{WORST}/{WORST}2", *BASE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_no_file_and_no_message_holds_a_mark_of_a_name(command, here, capsys, monkeypatch):
    if command == "collect":  # its episodes are as long as the environment's
        monkeypatch.setattr("nac_drive.envs.config.EnvConfig.max_steps", 3)
    assert call(*COMMANDS[command]) == 0
    output = capsys.readouterr()
    assert hidden(output.out + output.err) == set()
    assert shown(WORST) in re.sub(r"\s*\n\s*", "", output.out + output.err) or command in ("evaluate", "stress")
    made = [path for pattern in TEXTS for path in (here / WORST).rglob(pattern) if here / DRIVER not in path.parents]
    assert made or command == "video"
    for path in made:
        text = path.read_text(encoding="utf-8")
        assert hidden(text) == set(), path
        assert "<script>x" not in text or path.suffix in (".json", ".jsonl"), path
    if command in FIGURES:
        assert FIGURES[command] <= {path.name for path in (here / WORST / "out").iterdir()}


def test_the_tables_show_the_name_as_it_is(here):
    assert call(*COMMANDS["evaluate"]) == 0
    page = (here / WORST / "out" / "report.html").read_text()
    assert ReadPage(page).rows[1][0] == shown(WORST)
    command = unescape(re.search("<pre[^>]*>(.*)</pre>", page, re.DOTALL)[1]).splitlines()[1]  # type: ignore[index]
    if shutil.which("bash"):
        assert words_of(command)[:4] == ["nac-drive", "inspect", "--driver", DRIVER]
    shutil.rmtree(here / WORST / "out")
    assert call(*COMMANDS["stress"]) == 0
    reader = MarkdownIt("commonmark").enable("table")
    tokens = reader.parse((here / WORST / "out" / "table.md").read_text())
    cells = [token for token in tokens if token.type == "inline"]
    texts = ["".join(child.content for child in cell.children or ()) for cell in cells]
    assert shown(WORST) in texts
    assert {child.type for cell in cells for child in cell.children or ()} <= {"text", "code_inline", "image"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_every_driver_is_one_word_of_a_command_to_paste():
    line = inspect_command(NAMES, EpisodeResult("", 5, "ignore", "gap:1")).splitlines()[-1]
    drivers = [f"./{name}" if name.startswith("-") else name for name in NAMES]
    assert words_of(line)[3:-6] == drivers


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_marks_of_names_and_does_not_obey_them(terminal):
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=300, markup=False)
    name = WORST.replace("\x1b", "\x07")  # rich moves the cursor by \x1b
    with show_progress(console) as progress:
        progress(Event(name, 1, 2, name))
        progress(Event(name, 2, 2, name))
    output = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).replace("\r", "")
    assert hidden(output) == set()
    assert output.count(shown(name)) >= 2


MISSING = {
    "driver": ("evaluate", "--driver", WORST, *BASE),
    "ONNX": ("evaluate", "--driver", f"{WORST}.onnx", *BASE),
    "dataset": ("dataset", "info", WORST),
    "log": ("dataset", "rebuild", WORST, "--out", "new"),
    "video": ("watch", "--driver", "controller", "--video", WORST),
    "resume": ("evaluate", "--driver", "controller", "--out", WORST, "--resume", *BASE),
    "perturbation": ("evaluate", "--driver", "controller", "--perturb", WORST, *BASE),
    "tracks": ("evaluate", "--driver", "controller", "--tracks", WORST, *BASE),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_refusal_of_a_bad_name_prints(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert hidden(refused(capsys, *MISSING[case])) == set()


@pytest.mark.parametrize("command", ["evaluate", "stress"])
def test_a_figure_that_cannot_be_drawn_costs_no_result(command, here, monkeypatch, capsys):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a font\nis missing")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", broken)
    assert call(*COMMANDS[command]) == 0
    messages = {line for line in capsys.readouterr().err.splitlines() if "could not be drawn" in line}
    assert messages == {
        f"nac-drive: warning: {shown(WORST)}/out/{name} could not be drawn: a font is missing; the results are kept."
        for name in FIGURES[command]
    }
    made = {path.name for path in (here / WORST / "out").iterdir()}
    assert made >= {"rows.jsonl", "summary.json", {"evaluate": "report.html", "stress": "report.html"}[command]}
    assert not made & FIGURES[command]
