"""Hostile command lines: each starts its work, prints what was asked for, or is refused with nothing created."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from nac_drive import cli
from nac_drive.data_collection.collect import collect
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.envs import CarRacing, EnvConfig
from nac_drive.experiments import experiment
from nac_drive.parallel.processes import Workers
from nac_drive.training.trainer import Trainer
from tests.fuzz.readers import driver
from tests.fuzz.run import SETTINGS

SOUND = {
    "collect": """--out new --driver controller --episodes 2 --first-track 3 --noise 0.1 --noise-hold 4
        --control discrete --workers 1 --seed 1""",
    "dataset info": "data --json",
    "dataset verify": "data --workers 1",
    "dataset merge": "recorded --out new",
    "dataset action-log": "recorded --out new --workers 1",
    "dataset rebuild": "log.npz --out new --workers 1",
    "evaluate": """--driver driver --tracks 3,4 --crash ignore --perturb shadows:2+frame-drop:1:skip
        --baseline controller --out new --workers 1""",
    "watch": "--driver driver --track 3 --video new.mp4 --crash terminate --perturb shadows:1",
    "train": """data --out new --core nac-2k --core-args window=4 num_heads=2 --encoder compact
        --set driver.d_model=8 driver.dense=8 driver.dropout=0.1 --sequence-length 16 --batch-size 2
        --augment colour:1 --learning-rate 0.01 --set optim.ema_decay=0.9 optim.precision=32-true --seed 1
        --set validation_fraction=0.5 --validation-tracks val-1 --epochs 1
        --validate-every 1 --device cpu --workers 1""",
    "dagger": """--out new --expert controller --core lstm --set driver.d_model=8 --rounds 1 --initial-episodes 1
        --episodes 1 --set beta=0.5 switch_interval=5 --initial-epochs 1 --epochs 1 --control discrete
        --device cpu --workers 1 --learning-rate 0.01 --set final_learning_rate=0.001 --validation-tracks 3""",
    "ppo": """--out new --control discrete --seed 1 --total-timesteps 64 --n-envs 2 --n-steps 16
        --value-warmup-steps 0 --batch-size 16 --n-epochs 1 --learning-rate 0.001 --clip-range 0.1 --gamma 0.9
        --set optim.gae_lambda=0.9 reward.crash_penalty=1 reward.off_road_penalty=1 optim.ent_coef=0.01
        --validate-every 32 --validation-tracks 3""",
    "compare": """data --out new --drivers lstm nac-exact,window=4 --num-seeds 2 --tracks 3 --expert controller
        --crash ignore --epochs 1 --set driver.d_model=16 --device cpu --workers 1""",
}
"""Command -> words that start its work."""

HOSTILE = """
    -1 0 1 2 7 1.5 -0.5 1e-9 1e30 1e999 nan inf -inf 999999999 99999999999999999999 0x10 none None null true
    ../x /proc/x /dev/null/x data victim.txt driver log.npz champion controller expert val-1 val-0 test-101
    train-5 3,3 3,-4 3, 2147483648 18446744073709551616 shadows:9 shadows:1:x nope:1 shadows:2+ lstm
    lstm,/../../evil=1 nac-exact,top_k=1.5 nac-exact,window=-1 nac-exact,window=1e9 cnn all top_k=1.5
    window=[1,2] window={a:b} window= =3 window=999999999 cuda auto bf16-mixed 64-true 16 continuous masked
    gymnasium -- -h --help é\u202e
"""
WORDS = st.one_of(
    st.sampled_from([*HOSTILE.split(), "", " ", "x" * 300, "a\nb"]),
    st.text(max_size=5).filter(lambda word: "\x00" not in word), st.integers().map(str), st.floats().map(str),
)  # fmt: skip


class Started(BaseException):
    """The command has begun its work."""


def _start(*arguments: Any, **keywords: Any) -> Any:
    raise Started


@st.composite
def command_lines(draw: DrawFn) -> list[str]:
    """A sound command line with one to three changes."""
    command = draw(st.sampled_from(sorted(SOUND)))
    words = SOUND[command].split()
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(words) - 1)) if words else 0
        change = draw(st.sampled_from(("value", "value", "value", "value", "remove", "add", "option", "repeat")))
        values = [index for index, word in enumerate(words) if not word.startswith("--")]
        if change == "value" and values:
            words[draw(st.sampled_from(values))] = draw(WORDS)
        elif change == "remove" and words:
            del words[place]
        elif change == "option":
            options = [word for other in SOUND.values() for word in other.split() if word.startswith("--")]
            words.insert(place, draw(st.sampled_from([*options, "--resume", "--mask-bar", "--no-residual", "--json"])))
        elif change == "repeat" and words:
            words.insert(place, words[place])
        else:
            words.insert(place, draw(WORDS))
    return [*command.split(), *words]


def fuzz_commands(folder: Path, inputs: int, start: int = 0) -> Counter[str]:
    """Run `inputs` command lines.

    Args:
        folder: A folder to work in.
        inputs: Number of command lines.
        start: Seed of hypothesis.

    Returns:
        Number of command lines that started their work, that ended well, and that were refused.

    Raises:
        AssertionError: For any other outcome; hypothesis prints the shortest such line that it finds.
    """
    sound, work = folder / "sound-commands", folder / "commands"
    _inputs(sound)
    outcomes: Counter[str] = Counter()

    @seed(start)
    @settings(max_examples=inputs, **SETTINGS)
    @given(command_lines())
    def run(words: list[str]) -> None:
        if not work.exists():
            shutil.copytree(sound, work)
        outcomes[_outcome(work, sound, words)] += 1

    with work_is_not_done():
        run()
    return outcomes


def _inputs(folder: Path) -> None:
    folder.mkdir()
    driver(folder)
    episode = {"observations": np.zeros((33, 96, 96, 3), np.uint8), "actions": np.arange(32) % 5}
    Demonstrations.from_episodes(folder / "data", [episode, episode], seeds=[0, 1])
    collect(folder / "recorded", "controller", env=EnvConfig(max_steps=5), seeds=[2])
    shutil.copy(Path(__file__).parents[2] / "action_logs" / "expert-20.npz", folder / "log.npz")
    (folder / "victim.txt").write_text("a file of the user")


def _outcome(work: Path, sound: Path, words: list[str]) -> str:
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.chdir(work), contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            status = cli.main(words)
        except Started:
            shutil.rmtree(work)
            return "started"
        except SystemExit as end:
            status = int(end.code or 0)
    message = errors.getvalue()
    assert "Traceback" not in message, message
    if status == 0:
        shutil.rmtree(work)
        return "done"
    assert status == 2, (status, message)
    if message.startswith("nac-drive: "):
        lines = [line for line in message.splitlines() if not line.startswith("nac-drive: warning: ")]
        assert len(lines) == 1, message
    else:
        assert message.strip(), "refused without a message"  # the box of the parser
    assert _tree(work) == _tree(sound), "a refused command has changed files"
    return "refused"


def _tree(folder: Path) -> dict[str, bytes | None]:
    return {
        os.fspath(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


@contextlib.contextmanager
def work_is_not_done() -> Iterator[None]:
    """Raise Started where a command would simulate, train, or start processes."""
    places = ((CarRacing, "reset"), (Trainer, "epoch"), (Workers, "imap"), (Workers, "imap_unordered"))
    with contextlib.ExitStack() as stack:
        for holder, name in places:
            stack.enter_context(mock.patch.object(holder, name, _start))
        stack.enter_context(mock.patch.object(experiment, "each_in_a_process", _start))
        yield
