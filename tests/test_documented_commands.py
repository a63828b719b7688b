"""Every documented command line runs as documented: in an empty folder, page by page, in the order of the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from benchmarks.speed.gpu import PARTS
from tests.data_collection.tubs import write_tub
from tests.documented import PAGES, ROOT, Line, lines
from tests.nac_drive.live.test_udacity import write_log
from tests.own_drivers import trained
from tests.own_parts import forgotten
from tests.readers_shell import SHORTER, Shell, parses, small_world
from tests.slow import slow_but

LOGS = ("expert-20", "expert-20-dart", "broken-worlds")
DEMOS = "nac-drive collect --out demos"
FROZEN = "--freeze-encoder-from expert"


BLOCKS_BEFORE = {"docs/hub.md": [DEMOS, f"nac-drive train demos --out runs/mine {FROZEN}"]}
"""Page -> command lines that its Python blocks take for granted."""
SLOW = (
    r"docs/papers/(?!index).*|docs/(arena|challenge|champions|cloning|controller|differences|donkeycar|expert"
    r"|interpretability|leaderboard.*|log|ppo|results|robustness|seat.*|shifts|simulator|stress|tails|udacity"
    r"|your-own-(model|road))\.md"
)
"""Pages of results and of one view, source, road or command: `make test-all` runs them.

README, the tutorial and the reference of the command line have one of each kind.
"""
NEEDS = {"docs/enduro.md": "ale_py", "docs/metadrive.md": "metadrive"}
"""Page -> module of an extra that the tests may be without."""
DRAWN_WITH_PYGAME = {"docs/your-own-road.md"}
"""Pages whose environments observe nothing with the video driver that the tests set."""
TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
"""Page -> its text."""
BEFORE: dict[str, list[str | Callable[[], object]]] = {
    "README.md": [lambda: Path("mine.py").write_text("from torch.nn import GRU as Model\n")],
    "action_logs/README.md": [
        "nac-drive collect --out recorded", lambda: Path("action_logs").mkdir(),
        *(f"nac-drive dataset action-log recorded --out action_logs/{name}.npz" for name in LOGS),
    ],
    "docs/cli.md": ["nac-drive collect --out data"],
    "docs/demonstrations.md": [
        "nac-drive collect --out A", "nac-drive collect --out B --first-track 50",
    ],
    "docs/donkeycar.md": [lambda: write_tub(Path("mycar/data/tub_1"), frames=60)],
    "docs/drivers.md": [DEMOS],
    **{
        f"docs/{name}": [
            "nac-drive collect --driver controller --control continuous --out broken",
            lambda name=name: copytree(ROOT / "docs", "docs", ignore=lambda _, names: {*names} - {name}),
        ]
        for name in ("leaderboard.md", "leaderboard_seat.md")
    },
    "docs/leaderboard_all.md": [
        "nac-drive collect --driver controller --control continuous --out broken",
        "nac-drive compare broken --drivers lstm --freeze-encoder-from expert --expert controller --out runs/ranking",
        lambda: copytree(ROOT / "docs", "docs", ignore=lambda _, names: {*names} - {"leaderboard_all.md"}),
    ],
    "docs/nac.md": [DEMOS],
    "docs/perturbations.md": [DEMOS, f"nac-drive train demos --out runs/nac {FROZEN}"],
    "docs/stress.md": [
        DEMOS, f"nac-drive train demos --out runs/nac {FROZEN}",
        f"nac-drive train demos --out runs/lstm --core lstm {FROZEN}",
        "nac-drive dataset merge demos --out demonstrations",
    ],
    **{
        f"docs/papers/{name}.md": [lambda: copytree(ROOT / "docs/runs", "docs/runs")]
        for name in ("thesis-6.1-ten-folds", "nac-table1-five-folds")
    },
    "docs/robustness.md": [
        "nac-drive collect --out recorded", lambda: Path("action_logs").mkdir(),
        "nac-drive dataset action-log recorded --out action_logs/broken-worlds.npz",
    ],
    "docs/shifts.md": [lambda: exec(code("docs/shifts.md")[0], {})],  # it saves the driver that a command begins with
    "docs/your-own-driver.md": [lambda: trained().save("ppo.zip")],
    "docs/your-own-road.md": [lambda: Path("my_road.py").write_text(code("docs/your-own-road.md")[0])],
    "docs/udacity.md": [
        lambda: [write_log(Path(name), frames=40, gap=20) for name in ("log", "A", "B")],
    ],
}  # fmt: skip
"""Page -> what it takes for granted: command lines, and files."""
_CONTROLLER = "--driver controller --control continuous --noise 0.15"
_AS_ABOVE = "--freeze-encoder-from expert --expert controller --batch-size 16"
INSTANCES: dict[str, list[str]] = {
    "nac-drive COMMAND [OPTIONS]": ["nac-drive evaluate"],
    "nac-drive COMMAND --help": ["nac-drive evaluate --help"],
    "nac-drive reproduce TABLE": ["nac-drive reproduce --help"],
    "nac-drive reproduce NAME --out NAME": ["nac-drive reproduce nac-table5 --out table5"],
    "nac-drive reproduce NAME --out NAME --resume --only LSTM nac-exact": [
        "nac-drive reproduce nac-table5 --out table5 --resume --only LSTM nac-exact",
    ],
    "nac-drive reproduce NAME --out NAME-full --full": ["nac-drive reproduce nac-table5 --out table5-full --full"],
    "nac-drive reproduce nac-table1,tested_folds=5 --out five-folds": [
        "nac-drive reproduce nac-table5,d_model=8 --out table5-narrow",
    ],
    "python benchmarks/papers/reproduce.py NAME --out NAME": [
        "python benchmarks/papers/reproduce.py thesis-4.1 --out flow",
    ],
    "nac-drive train --core nac-2k": ["nac-drive train demos --out runs/nac-2k --core nac-2k"],
    "nac-drive dagger --control pulsed": ["nac-drive dagger --control pulsed --out runs/pulsed"],
    "nac-drive dagger --expert controller --residual --initial-episodes 16 --rounds 0 ...": [
        "nac-drive dagger --expert controller --residual --initial-episodes 16 --rounds=0 --validation-tracks val-10 "
        f"--out runs/{name} {core}"
        for name, core in (("single", "--core cnn --batch-size 128"), ("sequences", "--core-args num_heads=4"))
    ],
    "nac-drive evaluate --out FOLDER": ["nac-drive evaluate --out evaluated"],
    "nac-drive dataset action-log DATASET --out FILE": ["nac-drive dataset action-log episodes --out log.npz"],
    "nac-drive evaluate --driver champion --control CONTROL ...": [
        f"nac-drive evaluate --driver champion --control {control} --baseline none --tracks test-100"
        for control in ("discrete", "continuous")
    ],
    f"nac-drive collect {_CONTROLLER} --episodes 40 --out reach": [
        f"nac-drive collect {_CONTROLLER} --episodes=8 --out reach",
    ],
    "nac-drive dataset rebuild action_logs/broken-worlds.npz --out broken": [  # in place of the lines above it
        "nac-drive dataset rebuild action_logs/broken-worlds.npz --out broken-again",
    ],
    "nac-drive compare broken --out runs/lead-clockless ...": [
        "nac-drive compare broken --out runs/lead-clockless --set driver.clockless=true --drivers mtan --num-seeds 2 "
        f"{_AS_ABOVE}",
    ],
    "nac-drive compare broken --out runs/lead-dt ...": [
        "nac-drive compare broken --out runs/lead-dt --set driver.dt_input=true --drivers lstm --num-seeds 2 "
        f"{_AS_ABOVE}",
    ],
    "nac-drive compare broken --out runs/ablation ...": [
        f"nac-drive compare broken --out runs/ablation {_AS_ABOVE} --drivers nac-exact,num_heads=4,gain=8,value=input",
    ],
    "python benchmarks/attention.py --drivers runs/lead/nac-sharp-0 --perturb WORLD ...": [
        "python benchmarks/attention.py --drivers runs/lead/nac-sharp-0 --perturb blackouts:2 --out attention.json",
    ],
    "python benchmarks/protocols/harness.py champion --control CONTROL ...": [
        "python benchmarks/protocols/harness.py champion --control discrete --rows champion zeroed masked",
    ],
    "python benchmarks/speed/env_speed.py": ["python benchmarks/speed/env_speed.py 1"],
    "python benchmarks/speed/export.py CORES": ["python benchmarks/speed/export.py lstm nac-exact"],
    "python benchmarks/proof.py": ["python benchmarks/proof.py --frames 40 --workers 1"],
    "python benchmarks/proof_pixels.py": ["python benchmarks/proof_pixels.py --frames 18"],
    "python scripts/COMMAND.py": ["python scripts/evaluate.py --help"],
    "python -m nac_drive": ["python -m nac_drive --help"],
}
"""A line that is a scheme -> command lines of its kind. A key that ends with dots is the start of a line."""
_TESTS = "is made of tests"
NOT_RUN: dict[str, str] = {
    "nac-drive compare broken --out runs/nac-attempts ...": (
        "docs/robustness.md runs this command with cores of the package, test_nac_attempts.py the others"
    ),
    "nac-drive compare broken --out runs/blocks ...": "the same, with other cores",
    "nac-drive compare broken --view seat --out runs/carried-seat ...": "docs/leaderboard_seat.md runs it with others",
    "nac-drive compare broken --out runs/rate-2 ...": "the lines above it on the page differ in seeds and tracks alone",
    "nac-drive compare broken --tune ...": "docs/drivers.md tunes one core",
    "nac-drive compare demos40 --tune ...": "the line above it on the page tunes one core",
    "nac-drive demo --from-scratch": "takes an hour; tests/nac_drive/test_demo.py runs it with small settings",
    "nac-drive inspect --rerun episode.rrd --out seen": "needs an extra that the tests are installed without",
    "nac-drive collect --out data/large ...": "needs a Ray cluster; tests/nac_drive/test_cluster.py runs it",
    "nac-drive train data/expert --out runs/shared --device cuda --devices 4": "needs four GPUs",
    "python benchmarks/layer/kernel_registers.py": "tests/benchmarks runs it: here kernels run in Python",
    "python benchmarks/speed/gpu.py --out gpu.json": "needs a GPU; tests/benchmarks/test_gpu_script.py rehearses it",
    "MASTER_ADDR=HOST ...": "needs two machines; tests/nac_drive/training/test_distributed.py runs two processes",
    "python -m pytest tests/policies --gpu": _TESTS,
    "python -m tests.fuzz --inputs 100000 --out docs/runs/fuzz.json": _TESTS,
    "python tests/test_imports.py": _TESTS,
    "python drive.py champion.onnx 1000": "tests/policies/test_export.py runs the program of the page",
    "import json": "tests/policies/test_export.py runs the program of the page",
}
"""Line, or first line of a Python block -> why it is not run here."""
for _part in PARTS:
    _command = " ".join(["python", *_part.command, *_part.full, *(["--device", "cuda"] if _part.on_device else [])])
    if _command in TEXTS["docs/gpu_results.md"]:
        NOT_RUN[_command] = "needs a GPU; tests/benchmarks/test_gpu_script.py rehearses it"
_WRITES, _LONG = "writes the repository's own figures and pages", "takes minutes, and no option makes it short"
_TIMES = "measures time on an idle machine"
PARSED: dict[str, str] = {
    "python -m tests.fuzz --inputs 20000 ...": "needs an extra that the tests are installed without",
    "python -m tests.full_disk --sizes 8": _LONG,
    "python benchmarks/abuse.py": _LONG,
    "python benchmarks/attention.py": _WRITES,
    "python benchmarks/challenge.py": _WRITES,
    "python benchmarks/figures/broken_worlds.py ...": _WRITES,
    "python benchmarks/figures/curves.py ...": _WRITES,
    "python benchmarks/figures/interpretability.py ...": _WRITES,
    "python benchmarks/figures/leaderboard.py ...": _WRITES,
    "python benchmarks/figures/nac_idea.py": _WRITES,
    "python benchmarks/figures/perturbation_sheet.py": _WRITES,
    "python benchmarks/protocols/seat.py ...": "takes minutes with --quick",
    "python benchmarks/figures/screenshots.py ...": _WRITES,
    "python benchmarks/figures/short_cut.py ...": _WRITES,
    "python benchmarks/kills.py ...": _LONG,
    "python benchmarks/layer/block_selection.py": _LONG,
    "python benchmarks/layer/clock.py": _LONG,
    "python benchmarks/layer/cores.py": _TIMES,
    "python benchmarks/layer/cores.py --window 1024": _TIMES,
    "python benchmarks/layer/nac_layer.py": _TIMES,
    "python benchmarks/layer/nac_layer.py nac-pw -T 1024 --device cuda": _TIMES,
    "python benchmarks/layer/nac_variants.py": _LONG,
    "python benchmarks/layer/published_differences.py": _WRITES,
    "python benchmarks/papers/controller_search.py --control ...": _LONG,
    "python benchmarks/papers/five_actions.py ...": _LONG,
    "python benchmarks/papers/nac_theory.py": _WRITES,
    "python benchmarks/proof.py --frames ...": _LONG,
    "python benchmarks/proof_pixels.py --frames ...": _LONG,
    "python benchmarks/protocols/harness.py baselines ...": _LONG,
    "python benchmarks/protocols/harness.py cloning-methods ...": _LONG,
    "python benchmarks/protocols/average_weights.py ...": "takes stages of a long training; tests/benchmarks has it",
    "python benchmarks/protocols/blind_error.py ...": _LONG,
    "python benchmarks/protocols/close_roads.py ...": _LONG,
    "python benchmarks/protocols/ceiling.py ...": _LONG,
    "python benchmarks/protocols/tails.py ...": _LONG,
    "python benchmarks/protocols/transfer.py ...": _LONG,
    "python benchmarks/soak.py table": _WRITES,
    "OMP_NUM_THREADS=1 python benchmarks/soak.py ...": _LONG,
    "python benchmarks/speed/arena.py ...": _TIMES,
    "python benchmarks/speed/cluster.py ...": _TIMES,
    "python benchmarks/speed/compile.py": _TIMES,
    "python benchmarks/speed/drivers.py": _TIMES,
    "python benchmarks/speed/export.py --episodes": _TIMES,
    "python benchmarks/speed/export.py CORES": _TIMES,
    "python benchmarks/speed/loops.py": _TIMES,
    "python benchmarks/speed/ppo.py ...": _TIMES,
    "python benchmarks/speed/streaming.py ...": _TIMES,
    "python benchmarks/speed/training.py": _TIMES,
    "python benchmarks/speed/vector_speed.py ...": _TIMES,
}
"""Line of a script that is parsed or imported, not run -> why."""


def key_of(text: str, table: Mapping[str, Any]) -> str | None:
    """Return the key that a line has in a table."""
    starts = (key for key in table if key.endswith(" ...") and text.startswith(key[:-3]))
    return text if text in table else next(starts, None)


def documented(name: str) -> list[Line]:
    """The lines of a page that are run."""
    return [line for line in lines(TEXTS[name]) if line.kind != "code" and not key_of(line.text, NOT_RUN)]


def code(name: str) -> list[str]:
    """The Python blocks of a page that are run here."""
    blocks = [line.text for line in lines(TEXTS[name]) if line.kind == "code"]
    return [block for block in blocks if block.splitlines()[0] not in NOT_RUN]


COMMANDED = [name for name in TEXTS if documented(name)]
"""Pages with commands."""


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with small_world(tmp_path_factory.mktemp("kept")) as shell:
        yield shell


@pytest.mark.parametrize("name", slow_but([name for name in COMMANDED if not re.fullmatch(SLOW, name)], COMMANDED))
def test_the_lines_of_a_page_work(name: str, small: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(small, "variables", [])
    if name in DRAWN_WITH_PYGAME:
        monkeypatch.delenv("SDL_VIDEODRIVER")
    with forgotten():
        run_page(name, small, capsys)


def run_page(name: str, small: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the lines of a page in the current folder."""
    for before in BEFORE.get(name, []):
        if isinstance(before, str):
            assert small.run(before) == 0, before
        else:
            before()
    finished: set[str] = set()
    for line in documented(name):
        if line.kind == "variable":
            small.variables.append(line.text)
            continue
        if line.kind == "file":
            Path(line.text.split()[1]).write_text(line.text)
            continue
        scheme = key_of(line.text, INSTANCES)
        for text in INSTANCES[scheme] if scheme else [line.text]:
            if text not in finished:
                finished.add(text)
                run(line, text, small, capsys)


def run(line: Line, text: str, small: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    """Run one line; of a line with an answer, this answer is expected."""
    capsys.readouterr()
    if key_of(line.text, PARSED):
        assert parses(text), text
    elif line.answer:
        assert small.run(text) == 2
        assert capsys.readouterr().err.strip() == line.answer
    else:
        named = re.fullmatch(r"nac-drive (dataset )?[a-z][a-z-]*", text)  # a command's name in a sentence
        status = small.run(f"{text} --help" if named else text)
        assert status == 0, (text, capsys.readouterr().err)


@pytest.mark.parametrize("name", [name for name in TEXTS if code(name)])
def test_the_python_blocks_of_a_page_work(name: str, small: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    if name in DRAWN_WITH_PYGAME:
        monkeypatch.delenv("SDL_VIDEODRIVER")
    for line in BLOCKS_BEFORE.get(name, []):
        assert small.run(line) == 0, line
    names = {"__name__": "__main__"}
    with forgotten():
        for block in code(name):
            small.run_code(block, names)


def test_no_exception_is_stale():
    """Every line that is not run, or run in another form, stands in a page; all others were run above."""
    found = [line for name in TEXTS for line in lines(TEXTS[name])]
    texts = {line.text.splitlines()[0] if line.kind in ("code", "file") else line.text for line in found}
    for table in (INSTANCES, NOT_RUN, PARSED):
        assert set(table) == {key_of(text, table) for text in texts} - {None}
    assert not (set(BEFORE) | set(BLOCKS_BEFORE)) - set(TEXTS)
    assert not {long for long in SHORTER if not any(long in line.text for line in found)}
    assert len([text for text in texts if not key_of(text, NOT_RUN) and not key_of(text, PARSED)]) > 150
