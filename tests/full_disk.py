"""Run every command on a disk that is too small, or read-only, then go on with it when there is room.

    python -m tests.full_disk --sizes 12

A command on a small disk must end with exit status 2 and one line that names the file and the cause. When the disk has
grown, the command (with --resume where it has it) must leave what it leaves on a large disk.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from nac_drive.policies import Driver, DriverConfig, save_driver
from nac_drive.storage.lock import LOCK
from tests.commands import call
from tests.nac_drive.small import demonstrations, short_zoom
from tests.same_files import contents, differences

DISK = "disk"
"""The folder where the small disk is, beside the dataset `data` and the driver `driver`."""
_SMALL = [
    "--set",
    "driver.d_model=8",
    "driver.dense=8",
    "--validation-tracks",
    "3",
    "--device",
    "cpu",
    "--workers",
    "1",
]
_DRIVE = ["--workers", "1"]
RESUMABLE: dict[str, list[str]] = {
    "collect": ["collect", "--driver", "controller", "--episodes", "2", *_DRIVE],
    "train": ["train", "data", "--core", "cnn", "--epochs", "2", "--sequence-length", "16", "--batch-size", "2",
              *_SMALL],
    "dagger": ["dagger", "--expert", "controller", "--core", "cnn", "--rounds", "2", "--initial-episodes", "1",
               "--episodes", "1", "--initial-epochs", "1", "--epochs", "1", "--sequence-length", "16",
               "--set", "max_steps=20", *_SMALL],
    "ppo": ["ppo", "--total-timesteps", "64", "--n-envs", "1", "--n-steps", "32", "--batch-size", "32", "--n-epochs",
            "1", "--value-warmup-steps", "32", "--validate-every", "64", "--validation-tracks", "3"],
    "evaluate": ["evaluate", "--driver", "driver", "--tracks", "3,4,5", "--baseline", "controller", *_DRIVE],
    "stress": ["stress", "--drivers", "driver", "--tracks", "3,4", "--perturb", "gaussian-noise:1", "gap:1", *_DRIVE],
    "compare": ["compare", "data", "--drivers", "cnn", "--tracks", "3", "--expert", "controller", "--epochs", "1",
                *_SMALL],
    "reproduce": ["reproduce", "thesis-6.6", "--workers", "1"],
}  # fmt: skip
"""Command -> its words but --out."""
ONCE: dict[str, list[str]] = {
    "export-mp4": ["dataset", "export", "data", "--to", "mp4"],
    "export-minari": ["dataset", "export", "data", "--to", "minari"],
    "export-lerobot": ["dataset", "export", "data", "--to", "lerobot"],
    "merge": ["dataset", "merge", "data"],
    "inspect": ["inspect", "--driver", "driver", "--track", "3"],
    "export-onnx": ["export", "--driver", "driver"],
    "watch": ["watch", "--driver", "driver", "--track", "3"],
}
"""The same for commands that have no --resume: they leave all or nothing."""
_CAUSES = "No space left|File too large|MB are free|Read-only"
ONE_LINE = re.compile(rf"nac-drive: (?!.*\.tmp)[^\n]*cannot write {DISK}[^\n]*({_CAUSES})[^\n]*\n")
"""The line of a command on a full disk: the file, not the one that stands in for it, and the cause."""
FILES = {"export-onnx": ("--out", "out.onnx"), "watch": ("--video", "out.mp4")}
"""Commands that write one file."""


def words(command: str) -> list[str]:
    """The whole command line."""
    option, name = FILES.get(command, ("--out", "out"))
    return [*(RESUMABLE | ONCE)[command], option, f"{DISK}/{name}"]


def prepare(folder: Path) -> None:
    """Make what the commands read."""
    demonstrations(folder / "data")
    torch.manual_seed(0)
    env = {"control": "discrete", "mask_bar": False, "max_steps": 40}
    save_driver(folder / "driver", Driver(DriverConfig(core="cnn", encoder="pooled", d_model=8, dense=8)), env=env)


def run(folder: Path, line: list[str]) -> tuple[int, str]:
    """Run a command in a folder; return its exit status and what it wrote on stderr."""
    errors = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        return call(*line), errors.getvalue()


class Reference:
    """What a command leaves where there is room."""

    def __init__(self, base: Path, folder: Path, command: str):
        self.base, self.command = base, command
        shutil.copytree(base, folder)
        (folder / DISK).mkdir()
        status, errors = run(folder, words(command))
        assert status == 0, errors
        self.files = contents(folder, DISK)
        sizes = [path.stat().st_size for path in (folder / DISK).rglob("*") if path.is_file()]
        self.largest = max(sizes)
        self.total = sum(-(-size // 4096) * 4096 for size in sizes)

    def problems(self, folder: Path, fraction: float | None) -> list[str]:
        """Run the command on a disk with room for a fraction of its files (None: read-only); return what is wrong."""
        shutil.copytree(self.base, folder)
        (folder / DISK).mkdir()
        found = []
        with small_disk(folder / DISK, fraction, self) as grow:
            status, errors = run(folder, words(self.command))
            if status == 0 and fraction is not None:
                return []  # there was room enough: leftovers of other runs count in `total`
            causes = ("No space left", "File too large", "MB are free", "Read-only")
            if status != 2 or errors.count("\n") != 1:
                found.append(f"exit status {status}, {errors!r}")
            elif (
                f"cannot write {DISK}" not in errors or not any(cause in errors for cause in causes) or ".tmp" in errors
            ):
                found.append(f"neither file nor cause: {errors!r}")
            grow()
            found += [f"left behind: {path.name}" for path in (folder / DISK).rglob("*.tmp")]
            begun = any(path.is_file() and path.name != LOCK for path in (folder / DISK).rglob("*"))
            resumed = [*words(self.command), *(["--resume"] if begun and self.command in RESUMABLE else [])]
            status, errors = run(folder, resumed)
            if status:
                return [*found, f"cannot go on: {errors!r}"]
            return found + differences(self.files, contents(folder, DISK))


@contextlib.contextmanager
def small_disk(folder: Path, fraction: float | None, needs: Reference) -> Iterator[Callable[[], None]]:
    """Put a small or read-only disk at `folder`; the function that it yields makes it large and writable.

    It is a tmpfs where this process may mount one. Elsewhere the system refuses files of more than a size.
    """
    if can_mount():
        room = "ro" if fraction is None else f"size={max(2, int(fraction * needs.total / 4096)) * 4096}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", room, "tmpfs", folder], check=True)
        try:
            yield lambda: _remount(folder)
        finally:
            subprocess.run(["umount", folder], check=True)
    else:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int((fraction or 0.0) * needs.largest), limits[1]))
        try:
            yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _remount(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,rw,size=1g", folder], check=True)


def can_mount() -> bool:
    """Whether this process may mount a tmpfs."""
    if os.name != "posix" or os.geteuid() != 0 or not shutil.which("mount"):
        return False
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, check=False).returncode:
            return False
        subprocess.run(["umount", folder], check=True)
    return True


def main() -> None:
    """Run the commands over many sizes and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", nargs="+", default=[*RESUMABLE, *ONCE], choices=[*RESUMABLE, *ONCE])
    parser.add_argument("--sizes", type=int, default=8, help="sizes of the disk between nothing and enough")
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = False
    with tempfile.TemporaryDirectory(prefix="nac-drive-disk-") as name, short_zoom():
        root = Path(name)
        prepare(root / "base")
        for command in options.commands:
            reference = Reference(root / "base", root / f"{command}-reference", command)
            problems = []
            for number, fraction in enumerate([None, *(i / options.sizes for i in range(options.sizes))]):
                found = reference.problems(root / f"{command}-{number}", fraction)
                problems += [f"{'read-only' if fraction is None else round(fraction, 2)}: {line}" for line in found]
            print(f"{command:>15}  {reference.total // 1024:>6} KB  {problems or 'sound'}", flush=True)
            failed = failed or bool(problems)
    sys.exit(failed)


if __name__ == "__main__":
    main()
