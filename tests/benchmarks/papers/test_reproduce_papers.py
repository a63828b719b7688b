"""The script that measures the tables of benchmarks/papers: its names, its worker processes, its pages."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from reproduce import COMMAND, EXPERIMENTS, PROTOCOLS, main

from nac_drive.cli.reproduction import Reproduce
from nac_drive.experiments.journal import ROWS
from nac_drive.experiments.protocol import REPRODUCTIONS, SCRIPTED, load, names_in
from nac_drive.experiments.reproduce import EXPERIMENTS as SHIPPED
from tests.readers_shell import run_script

SCRIPT = Path(__file__).parents[3] / "benchmarks/papers/reproduce.py"


def run(*words: str, script: Path = SCRIPT, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(script), *words], cwd=folder, capture_output=True, text=True)


def test_the_package_and_the_script_share_the_tables_and_the_kinds():
    assert {name: load(name, PROTOCOLS).title for name in names_in(PROTOCOLS)} == SCRIPTED
    assert not {*SCRIPTED} & {*REPRODUCTIONS}
    assert not EXPERIMENTS.keys() & SHIPPED.keys()
    assert {load(name, PROTOCOLS).experiment for name in SCRIPTED} == EXPERIMENTS.keys()
    assert SCRIPT.relative_to(SCRIPT.parents[2]).as_posix() == COMMAND.removeprefix("python ")


@pytest.mark.slow
def test_a_worker_process_measures_a_table_and_a_resumed_script_adds_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The kinds are no part of the package: the spawned process finds them beside the script."""
    papers = shutil.copytree(SCRIPT.parent, tmp_path / "papers")
    protocol = papers / "protocols" / "thesis-4.1.yaml"
    protocol.write_text(protocol.read_text().replace("graphs: 1000, runs: 10", "graphs: 2, runs: 1"))
    script, words = papers / SCRIPT.name, ("thesis-4.1", "--out", "out", "--workers", "2")
    first, second = (entry.name for entry in load("thesis-4.1", PROTOCOLS).entries[:2])
    done = run(*words, "--only", first, script=script, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    assert run_script([str(script), *words[:-1], "1", "--only", second, "--resume"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / ROWS).read_text().splitlines()]
    assert [(row["entry"], row["run"]) for row in rows] == [(first, 0), (second, 0)]
    page = (tmp_path / "out" / "thesis-4.1.md").read_text()
    assert "    python benchmarks/papers/reproduce.py thesis-4.1 --out out\n" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("thesis-4.2", "--out", "out"), "reproduce.py: name must be one of nac-fig4, "),
        (
            ("thesis-4.1", "--out", "out", "--only", "x"),
            "reproduce.py: only: there is no 'x' in this table; choose from ",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert str(end.value.code).startswith(message)
    assert "\n" not in str(end.value.code)
    assert not list(tmp_path.iterdir())


def test_ctrl_c_is_one_line_that_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch):
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Reproduce, "run", stopped)
    monkeypatch.setattr(sys, "argv", ["reproduce.py", "thesis-4.1", "--out", "out"])
    with pytest.raises(SystemExit, match=r"^reproduce\.py: stopped; go on with --resume$"):
        main()
