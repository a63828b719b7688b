"""Learned key selection against plain top-k (`selection="learned"` and `"topk"`), on driving.

Records episodes of the shipped expert, trains one encoder end to end, and then trains core and action head alone on its
frozen features: every variant on the same batches in the same order, learned and plain selection from the same initial
weights. It does so twice: on every frame, and with half of the frames lost (features 0), so that an answer must be
fetched from earlier ones. A finished run is a row of DATA/results.jsonl, which the next start keeps and goes on from.

python benchmarks/protocols/learned_selection.py    # everything, one thread, about an hour; --help: options
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from scipy import stats
from torch import Tensor, nn

import nac_drive as nd
from nac_drive import Demonstrations, ages
from nac_drive.envs import SPLITS
from nac_drive.policies.action_heads import DiscreteActionHead
from nac_drive.policies.cores.nac import NACCore
from nac_drive.policies.cores.registry import build_core
from nac_drive.storage.write import write_atomically
from nac_drive.training.data import action_changes
from nac_drive.training.offline import measure_accuracy
from nac_drive.training.run_folder import describe_machine

EPISODES, RESERVED, VALIDATION = 26, 12, 4
"""Recorded episodes; those that no run trains on; those of these that choose the best epoch."""
D_MODEL, WINDOW, BATCH, LEARNING_RATE = 64, 32, 16, 1e-3
CHUNK, LOST = 64, 0.5
"""Frames at a time when a core streams over episodes; fraction of the frames that are lost in the gapped setting."""

SETTINGS = {"every frame": False, "half of the frames lost": True}
TOP_KS = (2, 4, 8)
"""Not 1: the softmax over one key is 1, so neither its logit nor its score gets a gradient."""
SELECTIONS = {"topk": "nac-exact", "learned": "nac-learned"}
NAC_SETTINGS = {"num_heads": 16, "window": WINDOW}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"{name}, K = {k}": (core, {**NAC_SETTINGS, "top_k": k}) for k in TOP_KS for name, core in SELECTIONS.items()},
    "no memory (cnn)": ("cnn", {}),
    "lstm": ("lstm", {}),
    "all keys (nac-pw)": ("nac-pw", NAC_SETTINGS),
}
COSTLY = {"all keys (nac-pw)": 3}
"""The most seeds that a slow variant is given."""

METRICS = {
    ("last", "agreement"): ("agreement, %", 100.0, 2),
    ("best", "agreement"): ("the same, best epoch", 100.0, 2),
    ("last", "at_lost"): ("on lost frames, %", 100.0, 2),
    ("last", "at_changes"): ("where the action changes, %", 100.0, 2),
    ("last", "cross_entropy"): ("cross-entropy", 1.0, 4),
    ("last", "episodes"): ("agreement by episode, %", 100.0, 2),
}
"""Metric of a row -> title, factor, decimals."""

KEPT = {
    "age": ("age, frames", 1.0),
    "newest": ("the present frame among them, %", 100.0),
    "observed": ("with an observation, %", 100.0),
    "as_own": ("in common with own q k, %", 100.0),
    "as_plain": ("in common with the plain run, %", 100.0),
    "moved": ("norm of M - 1", 1.0),
}
"""Metric of the kept keys -> title, factor."""

MARK = "<!-- below: written by benchmarks/protocols/learned_selection.py -->\n"

Row = dict[str, Any]
DATA, OUT = Path("runs/learned_selection"), Path("docs/learned_selection.md")


def main(data: Path = DATA, out: Path = OUT, seeds: int = 5, epochs: int = 16) -> None:
    """Train the runs that are missing in `data`; write the tables into `out`, below its text."""
    torch.set_num_threads(1)
    data.mkdir(parents=True, exist_ok=True)
    episodes, train = prepare(data), EPISODES - RESERVED
    splits = (
        episodes.part(0, train),
        episodes.part(train, train + VALIDATION),
        episodes.part(train + VALIDATION, EPISODES),
    )
    (data / "weights").mkdir(exist_ok=True)
    results = data / "results.jsonl"
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    wanted = [
        {"setting": setting, "variant": variant, "seed": seed, "epochs": epochs}
        for seed, variant, setting in product(range(seeds), VARIANTS, SETTINGS)
        if seed < COSTLY.get(variant, seeds)
    ]
    for number, key in enumerate(wanted, 1):
        if not any(key.items() <= row.items() for row in rows):
            started = time.perf_counter()
            rows.append(key | run(key, *splits, weights=data / "weights"))
            write_atomically(results, "".join(json.dumps(row) + "\n" for row in rows).encode())
            print(f"{number}/{len(wanted)} {key} {time.perf_counter() - started:.0f} s", flush=True)
    rows = [row for row in rows if any(key.items() <= row.items() for key in wanted)]
    text = report(rows, splits[2].counted.sum(dim=1).tolist())
    before = out.read_text().partition(MARK)[0] if out.exists() else "# Learned selection\n\n"
    write_atomically(out, (before + MARK + text).encode())
    print(text)


@dataclass(frozen=True)
class Episodes:
    """E episodes of at most L frames, padded at the end.

    x: (E, L, d), the encoder's features.  dt: (E, L) seconds since the previous frame.  labels: (E, L) int64, the
    expert's actions.  counted: (E, L) bool, False for padding and for the zoom at an episode's start.  changes: (E, L)
    bool, where the expert's action changes.  length: (E,) int64.
    """

    x: Tensor
    dt: Tensor
    labels: Tensor
    counted: Tensor
    changes: Tensor
    length: Tensor

    def part(self, first: int, end: int) -> Episodes:
        """The episodes `first` to `end`."""
        return Episodes(**{name: tensor[first:end] for name, tensor in vars(self).items()})


def prepare(data: Path) -> Episodes:
    """All episodes, those for training first, as features of one trained encoder; kept in features.pt."""
    cache = data / "features.pt"
    if cache.exists():
        return Episodes(**torch.load(cache, weights_only=True))
    folder, run_folder = data / "demonstrations", data / "encoder"
    tracks, noise = list(SPLITS["train"][-EPISODES:]), nd.NoiseConfig(0.1, 4.0)
    dataset = nd.collect(folder, "expert", env=nd.EnvConfig(), seeds=tracks, noise=noise, resume=folder.exists())
    config = nd.TrainConfig(
        nd.DriverConfig(core="lstm", encoder="paper", dropout=0.2),
        nd.DataConfig(batch_size=16),
        nd.OptimConfig(ema_decay=0.0),
        nd.EvalConfig("val-1"),
        epochs=10, validation_fraction=RESERVED / EPISODES, validate_every=10,
    )  # fmt: skip
    best = nd.train(config, dataset, run_folder, device="cpu", resume=(run_folder / "config.yaml").exists())
    train, validation = dataset.split(config.validation_fraction)
    order = [*train, *np.random.default_rng(0).permutation(validation).tolist()]
    episodes = encode(dataset, order, nd.load_driver(best).encoder.eval())
    torch.save(vars(episodes), cache.with_suffix(".tmp"))
    cache.with_suffix(".tmp").replace(cache)
    return episodes


@torch.no_grad()
def encode(dataset: Demonstrations, seeds: Sequence[int], encoder: nn.Module) -> Episodes:
    """The episodes on the tracks `seeds`, in that order."""
    longest, columns = max(row["length"] for row in dataset.rows), []
    for seed in seeds:
        frames = dataset.load([seed])
        changes = action_changes(frames.labels, frames.offsets)
        rest = map(torch.from_numpy, (frames.dt, frames.labels, ~frames.zooming, changes))
        episode, pad = (encoder(torch.from_numpy(frames.frames)), *rest), (0, longest - len(frames))
        padded = (F.pad(column, (0, 0) * (column.dim() - 1) + pad) for column in episode)
        columns.append([*padded, torch.tensor(len(frames))])
    return Episodes(*(torch.stack(tensors) for tensors in zip(*columns, strict=True)))


def run(key: Row, train: Episodes, validation: Episodes, test: Episodes, weights: Path) -> Row:
    """Train one variant with one seed; its metrics on the test episodes, and the keys that it selects there."""
    name, settings = VARIANTS[key["variant"]]
    gapped, seed = SETTINGS[key["setting"]], key["seed"]
    torch.manual_seed(seed)
    head = DiscreteActionHead(D_MODEL, D_MODEL)
    core = build_core(name, D_MODEL, D_MODEL, **settings)
    optimizer = torch.optim.Adam([*head.parameters(), *core.parameters()], LEARNING_RATE)
    validation, test = lose(validation, gapped), lose(test, gapped)
    curve, seconds = [], []
    for epoch in range(1, key["epochs"] + 1):
        started = time.perf_counter()
        for x, dt, labels in batches(train, np.random.default_rng((seed, epoch)), gapped):
            y, _ = core(x, dt, core.initial_state(len(x)))
            loss = head.loss(head(y), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds.append(time.perf_counter() - started)
        metrics = [score(predict(core, head, episodes), episodes) for episodes in (validation, test)]
        curve.append(metrics[1] | {"validation": metrics[0]["agreement"]})
    row = {"seconds": statistics.median(seconds), "last": curve[-1], "best": max(curve, key=lambda c: c["validation"])}
    row |= {"best_epoch": curve.index(row["best"]) + 1, "curve": [round(c["agreement"], 4) for c in curve]}
    if isinstance(core, NACCore) and "top_k" in settings:
        path = weights / f"{key['setting']}, {key['variant']}, {seed}, {key['epochs']}.pt"
        torch.save(core.state_dict(), path)
        row["kept"] = kept(core, test, Path(str(path).replace("learned, K", "topk, K")))
    return row


def batches(episodes: Episodes, rng: np.random.Generator, gapped: bool) -> list[tuple[Tensor, Tensor, Tensor]]:
    """One epoch of x (B, T, d), dt (B, T), labels (B, T): windows that tile every episode from a random phase on."""
    windows = []
    for episode, length in enumerate(episodes.length.tolist()):
        tiles = np.arange(-rng.integers(WINDOW), length, WINDOW).clip(0, length - WINDOW)
        windows += [(episode, start) for start in np.unique(tiles)]
    chosen = torch.from_numpy(rng.permutation(np.array(windows)))  # (N, 2)
    episode, frame = chosen[:, :1], chosen[:, 1:] + torch.arange(WINDOW)
    x = episodes.x[episode, frame]  # (N, T, d)
    if gapped:
        x = x * torch.from_numpy(rng.random(frame.shape) >= LOST).unsqueeze(2)
    columns = [column.split(BATCH) for column in (x, episodes.dt[episode, frame], episodes.labels[episode, frame])]
    return list(zip(*columns, strict=True))


def lose(episodes: Episodes, gapped: bool) -> Episodes:
    """The episodes, with the same frames lost each time."""
    seen = torch.rand(episodes.dt.shape, generator=torch.Generator().manual_seed(0)) >= LOST
    return replace(episodes, x=episodes.x * seen.unsqueeze(2)) if gapped else episodes


@torch.no_grad()
def predict(core: Any, head: nn.Module, episodes: Episodes) -> Tensor:
    """Logits (E, L, 5), streaming over whole episodes."""
    state, logits = core.initial_state(len(episodes.x)), []
    for x, dt in zip(episodes.x.split(CHUNK, 1), episodes.dt.split(CHUNK, 1), strict=True):
        y, state = core(x, dt, state)
        logits.append(head(y))
    return torch.cat(logits, dim=1)


def score(logits: Tensor, episodes: Episodes) -> Row:
    """Agreement with the expert (all frames, each episode, lost frames, changes of its action) and cross-entropy."""
    counted, right = episodes.counted, (logits.argmax(dim=2) == episodes.labels).double()
    lost = counted & ~observed(episodes)
    tensors = logits.argmax(dim=2)[counted], episodes.labels[counted], episodes.changes[counted]
    accuracy = measure_accuracy(*(tensor.numpy() for tensor in tensors))
    return {
        "agreement": accuracy.accuracy,
        "at_lost": float(right[lost].mean()) if lost.any() else None,
        "at_changes": accuracy.at_changes,
        "cross_entropy": float(F.cross_entropy(logits[counted], episodes.labels[counted])),
        "episodes": ((right * counted).sum(dim=1) / counted.sum(dim=1)).tolist(),
    }


def observed(episodes: Episodes) -> Tensor:
    """(E, L) bool, the frames that are there."""
    return (episodes.x != 0).any(dim=2)


@torch.no_grad()
def kept(core: NACCore, episodes: Episodes, plain: Path) -> Row:
    """The keys that a trained core keeps on the test episodes: their mean age in frames, how often the present frame is
    among them, the fraction that holds an observation; the fraction in common with its own q k (M the identity), and
    with the core saved in `plain`."""
    index, where = kept_index(core, episodes), episodes.counted.nonzero(as_tuple=True)  # (E, H, L, K)

    def mean(values: Tensor) -> float:
        return float(values.transpose(1, 2)[where].double().mean())

    age = torch.arange(index.shape[2]).view(-1, 1) - index
    held = observed(episodes)[:, None, None, :].expand(*index.shape[:3], -1).gather(3, index)
    row = {"age": mean(age), "newest": mean((age == 0).any(dim=3)), "observed": mean(held)}
    if (weight := core.nac.score_weight) is not None:
        own, other = deepcopy(core), deepcopy(core)
        own.nac.score_weight = other.nac.score_weight = None
        other.load_state_dict(torch.load(plain, weights_only=True))
        for name, twin in (("as_own", own), ("as_plain", other)):
            row[name] = mean((index.unsqueeze(4) == kept_index(twin, episodes).unsqueeze(3)).any(dim=4))
        row["moved"] = float((weight - torch.eye(weight.shape[1])).norm(dim=(1, 2)).mean())
    return row


def kept_index(core: NACCore, episodes: Episodes) -> Tensor:
    """(E, H, L, K) positions of the kept keys."""
    pairs = zip(episodes.x.split(1), episodes.dt.split(1), strict=True)  # an episode at a time bounds memory
    details = (core.nac(x, ages(dt.cumsum(dim=1)), window=WINDOW, return_attention=True)[1] for x, dt in pairs)
    return torch.cat([detail.index for detail in details])


def report(rows: list[Row], lengths: Sequence[int]) -> str:
    """All tables as markdown."""
    machine, seeds = describe_machine(), len({row["seed"] for row in rows})
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("nac-drive", "torch", "numpy", "gymnasium"))
    text = f"""
## Results

Written by `python benchmarks/protocols/learned_selection.py --seeds {seeds} --epochs {rows[0]["epochs"]}` on
{time.strftime("%Y-%m-%d")}: {machine["cpu_count"]} CPU cores, one thread; Python {machine["python"]}, {versions}.
{EPISODES - RESERVED} episodes to train, {VALIDATION} to pick the best epoch, {len(lengths)} to test
({sum(lengths):,} frames).

Variants: test episodes after the last epoch, mean ± sd over seeds. Learned minus plain: mean of the seeds' differences
and its 95 % t interval, over test episodes in the last column, over seeds elsewhere. Kept keys: plain / learned after
the last epoch, means over seeds, heads and test frames.
"""
    for setting in SETTINGS:
        mine = [row for row in rows if row["setting"] == setting]
        metrics = {at: metric for at, metric in METRICS.items() if mine[0][at[0]][at[1]] is not None}
        text += f"\n### Driving on {setting}\n" + summary(mine, metrics) + differences(mine, metrics) + kept_keys(mine)
    return text


def table(*lines: Sequence[str]) -> str:
    first, *rest = ("| " + " | ".join(line) + " |\n" for line in lines)
    return "\n" + first + "|---|" + "---:|" * (len(lines[0]) - 1) + "\n" + "".join(rest)


def values_of(rows: list[Row], variant: str, part: str, name: str) -> np.ndarray:
    """One metric of every seed, in order: (S,), or (S, episodes)."""
    mine = sorted((row for row in rows if row["variant"] == variant), key=lambda row: row["seed"])
    return np.array([row[part][name] for row in mine])


def summary(rows: list[Row], metrics: dict[tuple[str, str], Any]) -> str:
    metrics = {at: metric for at, metric in metrics.items() if at[1] != "episodes"}
    lines = [["variant", *(title for title, _, _ in metrics.values()), "training, s/epoch", "seeds"]]
    for variant in VARIANTS:
        seconds = [row["seconds"] for row in rows if row["variant"] == variant]
        columns = [(factor * values_of(rows, variant, *at), digits - 1) for at, (_, factor, digits) in metrics.items()]
        cells = [f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}" for values, digits in columns]
        lines.append([variant, *cells, f"{statistics.median(seconds):.2f}", str(len(seconds))])
    return table(*lines)


def differences(rows: list[Row], metrics: dict[tuple[str, str], Any]) -> str:
    lines = [["learned minus plain", *(title.replace("%", "points") for title, _, _ in metrics.values())]]
    lines += [[f"K = {k}"] for k in TOP_KS] + [["mean of these"]]
    for at, (_, factor, digits) in metrics.items():
        pairs = [[values_of(rows, f"{name}, K = {k}", *at) for name in ("learned", "topk")] for k in TOP_KS]
        gaps = [factor * (learned - plain) for learned, plain in pairs]  # (S,) or (S, episodes) each
        gaps = [gap.mean(axis=0) if at[1] == "episodes" else gap for gap in gaps]
        for cells, gap in zip(lines[1:], [*gaps, np.mean(gaps, axis=0)], strict=True):
            half = stats.t.ppf(0.975, len(gap) - 1) * stats.sem(gap)
            cells.append(f"{gap.mean():+.{digits}f} ± {half:.{digits}f}")
    return table(*lines)


def kept_keys(rows: list[Row]) -> str:
    lines = [["kept keys", *(title for title, _ in KEPT.values()), "in common by chance, %"]]
    for k in TOP_KS:
        cells = [f"K = {k}"]
        for name, (_, factor) in KEPT.items():
            both = ("topk", "learned") if name in ("age", "newest", "observed") else ("learned",)
            means = (factor * values_of(rows, f"{which}, K = {k}", "kept", name).mean() for which in both)
            cells.append(" / ".join(f"{mean:.1f}" for mean in means))
        lines.append([*cells, f"{100 * k / WINDOW:.1f}"])
    return table(*lines)


if __name__ == "__main__":
    tyro.cli(main)
