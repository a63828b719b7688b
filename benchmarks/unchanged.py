"""Does the package still compute what it computed? Digests of actions, weights and rows, recorded once and compared.

    python benchmarks/unchanged.py            # compare with docs/runs/unchanged.json
    python benchmarks/unchanged.py --record   # write that file

Names in files and code may change; numbers may not. So a digest of weights is one of the tensors, whatever they are
called, and rows are reduced to the numbers that were computed (no times).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import nac_drive as nd
from data_collection.episode_file import read_episode
from data_collection.run_folder import RunFolder

REFERENCE = Path(__file__).parents[1] / "docs" / "runs" / "unchanged.json"
SHORT = nd.EnvConfig(max_steps=120, renderer="fast")
TRACKS = [0, 1, 2, 3]


def shipped() -> dict[str, Any]:
    """Actions of every shipped driver in three validation episodes."""
    found = {}
    for name in ("champion-continuous", "champion-discrete", "expert-continuous", "expert-discrete"):
        driver = nd.load_driver(Path(__file__).parents[1] / "policies" / "shipped" / name)
        for track in nd.track_seeds("val-3"):
            actions: list[Any] = []
            env = nd.make_env(nd.EnvConfig(**driver.env_config))
            episode = nd.rollout(env, driver, track, subscribers=[lambda step, to=actions: to.append(step.action)])
            found[f"{name} {track}"] = [digest(np.stack(actions)), episode.length, episode.episode_return]
    return found


def collect(folder: Path) -> nd.Demonstrations:
    return nd.record(
        folder, "expert", env=SHORT, seeds=TRACKS, noise=nd.NoiseConfig(0.2, 4), seed=1, workers=2
    )  # fmt: skip


def collected(dataset: nd.Demonstrations) -> dict[str, Any]:
    found = {}
    for row in dataset.rows:
        arrays, summary = read_episode(dataset.path / row["file"], dataset.meta.env.control)
        columns = {"frames": arrays.frames, **arrays.columns()}
        found[str(row["index"])] = [{name: digest(values) for name, values in columns.items()}, summary]
    return found


def train(dataset: nd.Demonstrations, folder: Path) -> dict[str, Any]:
    config = nd.CloneConfig(
        core="nac-exact", core_args={"num_heads": 4}, vision="paper", residual=False, dropout=0.2, window=16,
        batch_size=4, learning_rate=1e-3, average=0.9, class_weights=True, change_weight=2.0, mirror=True,
        augment=("gaussian-noise:1",), validation_tracks="val-1", seed=3, epochs=2, validation_share=0.25,
        validate_every=2,
    )  # fmt: skip
    nd.clone(config, dataset, folder, device="cpu")
    return run(folder)


def dagger(folder: Path) -> dict[str, Any]:
    config = nd.DaggerConfig(
        core="cfc", vision="compact", residual=True, dropout=0.0, window=16, batch_size=4, learning_rate=1e-3,
        final_learning_rate=2e-4, average=0.99, mirror=True, validation_tracks="val-1", seed=5, control="continuous",
        renderer="fast", max_steps=100, rounds=2, first_laps=2, laps=2, noise=0.15, noise_hold=4.0, student_share=0.8,
        segment=25, first_epochs=1, epochs=1,
    )  # fmt: skip
    nd.dagger(config, folder, teacher="controller", device="cpu")
    return {**run(folder), "dataset": collected(nd.Demonstrations.open(folder / "dataset"))}


def ppo(folder: Path) -> dict[str, Any]:
    config = nd.ExpertConfig(
        control="discrete", renderer="fast", seed=2, sharpness=1.0, steps=256, envs=2, rollout_steps=64,
        value_warmup_steps=64, batch_size=64, epochs=2, learning_rate=1e-4, clip_range=0.1, gamma=0.99, gae_lambda=0.95,
        entropy=0.01, validate_every=128, validation_tracks="val-1", init="expert",
    )  # fmt: skip
    nd.train_expert(config, folder)
    return run(folder)


def compare(dataset: nd.Demonstrations, folder: Path) -> dict[str, Any]:
    config = nd.CloneConfig(
        core="lstm", vision="compact", residual=False, dropout=0.2, window=16, batch_size=4, learning_rate=1e-3,
        average=0.0, mirror=True, validation_tracks="val-1", seed=0, epochs=1, validation_share=0.25, validate_every=1,
    )  # fmt: skip
    nd.compare(
        ("lstm", "nac-exact"), dataset, nd.track_seeds("val-2"), folder, config=config, repeats=2, frozen=True,
        renderer="fast", device="cpu", workers=2,
    )  # fmt: skip
    runs = sorted(path.parent for path in folder.glob("*/config.yaml"))
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    driven = {name: [row for row in lines if row["driver"] == name] for name in sorted({r["driver"] for r in lines})}
    return {
        "weights": {path.name: weights(path) for path in runs},
        "rows": {
            name: [[row["seed"], row["episode_return"], row["length"], row["agreement"]] for row in rows]
            for name, rows in driven.items()
        },
    }


def run(folder: Path) -> dict[str, Any]:
    """Weights and computed numbers of a run."""
    rows = [
        {"step": row["step"], "returns": row["returns"], **{k: row[k] for k in ("loss", "accuracy", "agreement") if k in row}}
        if "returns" in row else {"step": row["step"], "loss": row["loss"]}
        for row in RunFolder.open(folder).rows()
    ]  # fmt: skip
    return {"weights": weights(folder), "rows": rows}


def weights(folder: Path) -> str:
    """Of the last checkpoint: the digests of its tensors, in an order that no name decides."""
    last = RunFolder.open(folder).checkpoint_folder("last")
    assert last is not None
    tensors = load_file(last / "model.safetensors").values()
    return hashlib.sha256("".join(sorted(digest(tensor.numpy()) for tensor in tensors)).encode()).hexdigest()


def digest(values: np.ndarray) -> str:
    return hashlib.sha256(f"{values.dtype}{values.shape}".encode() + np.ascontiguousarray(values).tobytes()).hexdigest()


def everything() -> dict[str, Any]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        dataset = collect(folder / "dataset")
        found = {
            "shipped drivers": shipped(),
            "collect": collected(dataset),
            "train": train(dataset, folder / "train"),
            "dagger": dagger(folder / "dagger"),
            "ppo": ppo(folder / "ppo"),
            "compare": compare(dataset, folder / "compare"),
        }
    return json.loads(json.dumps(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write the reference instead of comparing with it")
    record = parser.parse_args().record
    found = everything()
    if record:
        REFERENCE.write_text(json.dumps(found, indent=1) + "\n")
        print(f"recorded: {REFERENCE}")
        return 0
    expected = json.loads(REFERENCE.read_text())
    for part in expected:
        print(f"{part}: {'equal, bit for bit' if found.get(part) == expected[part] else 'DIFFERENT'}")
    return 0 if found == expected else 1


if __name__ == "__main__":
    sys.exit(main())
