"""The NAC paper's protocol, done right: cross-validated action accuracy over tracks, and what its shortcuts are worth.

    python benchmarks/paper_protocol.py runs/expert-20 [--out runs/paper_protocol] [--workers 2]

The published figures (about 80.6 %) come from folds over shuffled frames, so that the neighbours of every tested frame
were trained on, and from sequences of length 1, in which no core remembers anything. Here every core is trained in
5 folds over

- `tracks`, in sequences of 32 frames and streamed over whole laps when tested: the honest figure,
- `tracks`, in sequences of length 1,
- `frames`, shuffled, in sequences of length 1: the published protocol.

Each training stops when the accuracy on an eighth of its own training tracks (or frames) has not risen for 3 epochs, at
most 100. The zoom at the start of a lap is left out. Rows are kept in rows.jsonl: run it again to go on.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_collection.dataset import Demonstrations
from data_collection.frames import Frames
from data_collection.processes import one_thread, worker_pool
from policies import Driver, DriverConfig

CORES: dict[str, dict[str, Any]] = {
    "nac-exact": {"num_heads": 4}, "nac-pw": {"num_heads": 4}, "nac-steady": {"num_heads": 4},
    "lstm": {}, "gru": {}, "cfc": {},
}  # fmt: skip
CELLS = (("tracks", 32), ("tracks", 1), ("frames", 1))
FOLDS, EPOCHS, PATIENCE = 5, 100, 3
FRAMES_PER_UPDATE, LEARNING_RATE = 128, 1e-3


@dataclass(frozen=True)
class Task:
    """One training."""

    core: str
    split: str
    length: int
    fold: int


@dataclass(frozen=True)
class Parts:
    """Rows of the dataset, each the first of a sequence: to train on, to stop by, to test on."""

    train: np.ndarray
    stop: np.ndarray
    test: np.ndarray


@lru_cache(maxsize=1)
def load(dataset: Path) -> Frames:
    return Demonstrations.open(dataset).load()


def parts(frames: Frames, task: Task) -> Parts:
    """Of frames after the zoom. Sequences never cross laps; of `tracks` they tile every lap."""
    laps = list(zip(frames.offsets[:-1], frames.offsets[1:], strict=True))
    rng = np.random.default_rng(task.fold)
    if task.split == "frames":
        shuffled = np.random.default_rng(0).permutation(np.flatnonzero(~frames.zooming))
        test, rest = shuffled[task.fold :: FOLDS], np.delete(shuffled, np.s_[task.fold :: FOLDS])
        return Parts(rest[len(rest) // 8 :], rest[: len(rest) // 8], test)
    order = np.random.default_rng(0).permutation(len(laps))
    tested = set(order[task.fold :: FOLDS].tolist())
    rest = rng.permutation([lap for lap in order if lap not in tested]).tolist()
    stop = rest[: len(rest) // 8]

    def tiles(chosen: list[int]) -> np.ndarray:
        begun = [laps[lap][0] + int(frames.zooming[slice(*laps[lap])].sum()) for lap in chosen]
        return np.concatenate([
            np.arange(first, laps[lap][1] - task.length + 1, task.length)
            for lap, first in zip(chosen, begun, strict=True)
        ])  # fmt: skip

    return Parts(tiles(rest[len(stop) :]), tiles(stop), tiles(sorted(tested)))


def train(dataset: Path, precision: str, task: Task) -> dict[str, Any]:
    """The row of one training: accuracy of the epoch that the stopping set chose, on the tested frames."""
    frames = load(dataset)
    images, labels = torch.from_numpy(frames.frames), torch.from_numpy(frames.labels)
    dt = torch.from_numpy(frames.dt)
    chosen = parts(frames, task)
    autocast = partial(torch.autocast, "cpu", torch.bfloat16, enabled=precision == "bf16-mixed")
    torch.manual_seed(task.fold)
    rng = np.random.default_rng((task.fold, 1))
    driver = Driver(DriverConfig(core=task.core, core_args=CORES[task.core], vision="compact", dropout=0.2))
    optimizer = torch.optim.Adam(driver.parameters(), LEARNING_RATE)

    def windows(starts: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.from_numpy(starts[:, None] + np.arange(task.length))
        return images[rows], dt[rows], labels[rows]

    def batches(starts: np.ndarray, size: int) -> Iterator[np.ndarray]:
        yield from np.split(starts, range(size, len(starts), size))

    @torch.no_grad()
    def accuracy(starts: np.ndarray) -> float:
        """Streamed: a sequence that follows on another goes on with its state, unless sequences are single frames."""
        driver.eval()
        correct = 0
        with autocast():
            if task.length == 1:
                for batch in batches(starts, 512):
                    x, t, y = windows(batch)
                    correct += int((driver(x, t)[0].argmax(-1) == y).sum())
            else:
                state, previous = driver.initial_state(1), None
                for start in starts:
                    if previous is None or start != previous + task.length:
                        state = driver.initial_state(1)
                    x, t, y = windows(np.array([start]))
                    prediction, state = driver(x, t, state)
                    correct += int((prediction.argmax(-1) == y).sum())
                    previous = start
        return correct / (len(starts) * task.length)

    best, since, tested, epoch = -1.0, 0, 0.0, 0
    while epoch < EPOCHS and since < PATIENCE:
        driver.train()
        for batch in batches(rng.permutation(chosen.train), max(1, FRAMES_PER_UPDATE // task.length)):
            x, t, y = windows(batch)
            with autocast():
                prediction, _ = driver(x, t)
            loss = driver.head.loss(prediction.float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        epoch, score = epoch + 1, accuracy(chosen.stop)
        since += 1
        if score > best:
            best, since, tested = score, 0, accuracy(chosen.test)
    return {**vars(task), "epochs": epoch, "stopping": best, "accuracy": tested}


def work(dataset: Path, precision: str, task: Task) -> dict[str, Any]:
    with one_thread():
        return train(dataset, precision, task)


def table(rows: list[dict[str, Any]]) -> str:
    headings = [f"{split}, length {length}" for split, length in CELLS]
    lines = ["| core | " + " | ".join(headings) + " |", "|---|" + "---:|" * len(CELLS)]
    for core in CORES:
        cells = []
        for split, length in CELLS:
            found = [
                100 * row["accuracy"]
                for row in rows
                if (row["core"], row["split"], row["length"]) == (core, split, length)
            ]
            cells.append(f"{np.mean(found):.1f} ± {np.std(found, ddof=1):.1f}" if len(found) == FOLDS else "-")
        lines.append(f"| {core} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = ArgumentParser(description="Cross-validated action accuracy over tracks and over shuffled frames.")
    parser.add_argument("dataset", type=Path, help="laps of the expert, such as nac-drive dataset rebuild makes")
    parser.add_argument("--out", type=Path, default=Path("runs/paper_protocol"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--precision", default="32-true", choices=["32-true", "bf16-mixed"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    journal = options.out / "rows.jsonl"
    rows = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    done = {Task(row["core"], row["split"], row["length"], row["fold"]) for row in rows}
    tasks = [Task(core, split, length, fold) for fold in range(FOLDS) for split, length in CELLS for core in CORES]
    missing = [task for task in tasks if task not in done]
    with worker_pool(options.workers) as pool, journal.open("a") as file:
        one = partial(work, options.dataset, options.precision)
        for row in (pool.imap_unordered if pool else map)(one, missing):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(row, flush=True)
    (options.out / "table.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
