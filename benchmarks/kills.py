"""Kill commands with kill -9 at random moments, resume them, and compare with runs that were never interrupted.

    python benchmarks/kills.py --kills 30 --out docs/runs/kills.json

A chain kills a command several times and lets it finish. Then every file must equal the uninterrupted run's, times
aside, and no process and no other file may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from tests.same_files import contents, differences

KILLS_PER_CHAIN = 5
COMMANDS: dict[str, list[str]] = {
    "collect": ["collect", "--out", "out", "--driver", "controller", "--episodes", "6", "--noise", "0.1", "--workers",
                "2"],
    "train": ["train", "data", "--out", "out", "--core", "nac-exact", "--core-args", "window=4", "--epochs", "4",
              "--set", "driver.d_model=16", "driver.dense=16", "--validation-tracks", "3,4", "--device", "cpu",
              "--workers", "2"],
    "dagger": ["dagger", "--out", "out", "--expert", "controller", "--core", "lstm", "--rounds", "3",
               "--set", "driver.d_model=16", "--initial-episodes", "2", "--episodes", "2", "--initial-epochs", "1",
               "--epochs", "1", "--validation-tracks", "3,4", "--device", "cpu", "--workers", "2"],
    "ppo": ["ppo", "--out", "out", "--total-timesteps", "1024", "--n-envs", "2", "--n-steps", "32", "--batch-size",
            "64", "--value-warmup-steps", "256", "--n-epochs", "2", "--validate-every", "256", "--validation-tracks",
            "3"],
    "evaluate": ["evaluate", "--driver", "champion", "--tracks", "3,4,5,6", "--baseline", "controller", "--out", "out",
                 "--workers", "2"],
    "compare": ["compare", "data", "--out", "out", "--drivers", "lstm", "cnn", "--num-seeds", "2", "--tracks", "3,4",
                "--expert", "controller", "--set", "driver.d_model=16", "--epochs", "2",
                "--validation-tracks", "3", "--device", "cpu", "--workers", "2"],
    "stress": ["stress", "--drivers", "champion", "expert", "--tracks", "3,4", "--perturb", "gap:1", "--out", "out",
               "--workers", "2"],
    "reproduce": [str(Path(__file__).parent / "papers/reproduce.py"), "thesis-4.1", "--out", "out", "--workers", "2"],
}  # fmt: skip
"""Command -> the words after `nac-drive`, or a script and its words; `data` is a small dataset."""
DATASET = [
    "collect",
    "--out",
    "data",
    "--driver",
    "controller",
    "--episodes",
    "4",
    "--noise",
    "0.1",
]

PATIENCE = 60.0
"""Seconds that worker processes may take to notice the death of their parent."""


def main() -> None:
    """Kill all commands and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="kills of each command")
    parser.add_argument("--commands", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="nac-drive-kills-") as name:
        root = Path(name)
        (root / "base").mkdir()
        run(DATASET, root / "base")
        for command in options.commands:
            results[command] = kill_often(command, root, options.kills, random.Random(f"{options.seed} {command}"))
            print(f"{command:>9}  {results[command]}", flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=2) + "\n")
    sys.exit(any(result["problems"] for result in results.values()))


def kill_often(command: str, root: Path, kills: int, rng: random.Random) -> dict[str, Any]:
    """Kill one command `kills` times; return what was found."""
    words = COMMANDS[command]
    reference = fresh(root, "reference")
    started = time.monotonic()
    run(words, reference)
    duration = time.monotonic() - started
    expected = results(reference)
    done, late, orphans, chains, problems = 0, 0, 0, 0, []
    while done < kills:
        chains += 1
        folder = fresh(root, "killed")
        for _ in range(KILLS_PER_CHAIN):
            if done == kills:
                break
            wait = rng.uniform(0.0, duration)
            killed, left = kill(again(words, folder), folder, wait)
            orphans += left
            done += killed
            late += not killed
            if not killed:  # it had ended before
                break
        try:
            run(again(words, folder), folder)
        except RuntimeError as error:
            problems.append(f"chain {chains}: {error}")
        problems += [f"chain {chains}: {line}" for line in differences(expected, results(folder))]
    return {
        "kills": done, "chains": chains, "ended_before_the_kill": late, "orphans": orphans,
        "seconds_uninterrupted": round(duration, 1), "problems": problems,
    }  # fmt: skip


def fresh(root: Path, name: str) -> Path:
    """A new folder with the dataset."""
    shutil.rmtree(root / name, ignore_errors=True)
    shutil.copytree(root / "base", root / name)
    (root / name / "tmp").mkdir(exist_ok=True)
    return root / name


def again(words: list[str], folder: Path) -> list[str]:
    """The command that starts the work, or goes on with it where it has left anything."""
    left = [path for path in (folder / "out").rglob("*") if path.is_file() and path.name != ".lock"]
    return [*words, "--resume"] if any(path.suffix != ".tmp" for path in left) else words


def start(words: list[str], folder: Path, mark: str) -> subprocess.Popen:
    """The command as a process; `mark` is in the environment of all its processes."""
    environment = {**os.environ, "NAC_DRIVE_KILLS": mark, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
    program = words if words[0].endswith(".py") else ["-m", "nac_drive", *words]
    return subprocess.Popen(
        [sys.executable, *program], cwd=folder, env=environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def run(words: list[str], folder: Path) -> None:
    """Let a command finish.

    Raises:
        RuntimeError: If it fails.
    """
    (folder / "tmp").mkdir(exist_ok=True)
    process = start(words, folder, uuid.uuid4().hex)
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)}: {errors.strip()}")


def kill(words: list[str], folder: Path, wait: float) -> tuple[bool, int]:
    """Start a command and kill it; return whether it was alive, and how many of its processes outlived it."""
    mark = uuid.uuid4().hex
    process = start(words, folder, mark)
    try:
        process.communicate(timeout=wait)
        return False, 0
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + PATIENCE
    while (left := alive(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for number in left:
        os.kill(number, signal.SIGKILL)
    return True, len(left)


def alive(mark: str) -> list[int]:
    """The processes with `mark` in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has ended, or belongs to somebody else
            continue
    return found


def results(folder: Path) -> dict[str, Any]:
    """Every file of the results and of the temporary folder, times aside."""
    return contents(folder, "out", "tmp")


if __name__ == "__main__":
    main()
