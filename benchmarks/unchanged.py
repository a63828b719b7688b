"""Does the package still compute what it computed? Digests of actions, weights and rows, recorded once and compared.

    python benchmarks/unchanged.py            # compare with docs/runs/unchanged.json
    python benchmarks/unchanged.py --record   # write that file

Names in files and code may change; numbers may not. So a digest of weights is one of the tensors, whatever they are
called, and rows are reduced to the numbers that were computed (no times).

torch's numbers depend on the processor: on another kind than the reference's all parts but `collect` differ. Then
record both versions on one machine, and compare the files.
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
from nac_drive.data_collection.dataset.episode_file import read_episode
from nac_drive.policies import PRETRAINED
from nac_drive.training.run_folder import RunFolder

REFERENCE = Path(__file__).parents[1] / "docs" / "runs" / "unchanged.json"
SHORT = nd.EnvConfig(max_steps=120)
TRACKS = [0, 1, 2, 3]
NAMES = {"encoder": "vision"}
SECONDS = {"time_unit": 1.0}
"""The reference was recorded by version 0.1, in which time reached every core in seconds."""


def shipped() -> dict[str, Any]:
    """Actions of every shipped driver in three validation episodes."""
    found = {}
    for name in PRETRAINED:
        driver = nd.load_driver(name)
        for track in nd.track_seeds("val-3"):
            actions: list[Any] = []
            env = nd.make_env(nd.EnvConfig(**driver.env_config))
            episode = nd.rollout(env, driver, track, subscribers=[lambda step, to=actions: to.append(step.action)])
            found[f"{name} {track}"] = [digest(np.stack(actions)), episode.length, episode.episode_return]
    return found


def collect(folder: Path) -> nd.Demonstrations:
    return nd.collect(folder, "expert", env=SHORT, seeds=TRACKS, noise=nd.NoiseConfig(0.2, 4), seed=1, workers=2)


def collected(dataset: nd.Demonstrations) -> dict[str, Any]:
    found = {}
    for row in dataset.rows:
        arrays, summary = read_episode(dataset.path / row["file"], dataset.meta.env)
        columns = {"frames": arrays.frames, **arrays.columns()}
        found[str(row["index"])] = [{name: digest(values) for name, values in columns.items()}, summary]
    return found


def train(dataset: nd.Demonstrations, folder: Path) -> dict[str, Any]:
    config = nd.TrainConfig(
        nd.DriverConfig(core="nac-exact", core_args={"num_heads": 4, **SECONDS}, encoder="paper", dropout=0.2),
        nd.DataConfig(16, 4, augment=("gaussian-noise:1",)),
        nd.OptimConfig(learning_rate=1e-3, ema_decay=0.9),
        nd.EvalConfig("val-1"),
        seed=3, epochs=2, validation_fraction=0.25, validate_every=2,
    )  # fmt: skip
    nd.train(config, dataset, folder, device="cpu")
    return run(folder)


def dagger(folder: Path) -> dict[str, Any]:
    config = nd.DaggerConfig(
        nd.DriverConfig(core="cfc", core_args=SECONDS, residual=True, control="continuous"),
        nd.DataConfig(16, 4),
        nd.OptimConfig(ema_decay=0.99),
        nd.EvalConfig("val-1"),
        seed=5, max_steps=100, rounds=2, initial_episodes=2, episodes=2, noise=0.15, noise_hold=4.0,
        beta=0.2, switch_interval=25, initial_epochs=1, epochs=1, final_learning_rate=2e-4,
    )  # fmt: skip
    nd.dagger(config, folder, expert="controller", device="cpu")
    return {**run(folder), "dataset": collected(nd.Demonstrations.open(folder / "dataset"))}


def ppo(folder: Path) -> dict[str, Any]:
    config = nd.PPOConfig(
        rollout=nd.RolloutConfig(n_envs=2, n_steps=64, action_repeat=1),
        optim=nd.PPOOptimConfig(
            init_from="expert", value_warmup_steps=64, batch_size=64, n_epochs=2, ent_coef=0.01
        ),
        validation=nd.EvalConfig("val-1"), seed=2, total_timesteps=256, validate_every=128,
    )  # fmt: skip
    nd.ppo(config, folder, device="cpu")
    return run(folder)


def compare(dataset: nd.Demonstrations, folder: Path) -> dict[str, Any]:
    config = nd.TrainConfig(
        nd.DriverConfig(core="lstm", dropout=0.2), nd.DataConfig(16, 4),
        nd.OptimConfig(learning_rate=1e-3, ema_decay=0.0),
        nd.EvalConfig("val-1"), seed=0, epochs=1, validation_fraction=0.25, validate_every=1,
    )  # fmt: skip
    nd.compare(
        ("lstm", "nac-exact,time_unit=1.0"), dataset, "val-2", folder, config=config, num_seeds=2, shared_encoder=True,
        device="cpu", workers=2,
    )  # fmt: skip
    runs = sorted(path.parent for path in folder.glob("*/config.yaml"))
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    driven = {name: [row for row in lines if row["driver"] == name] for name in sorted({r["driver"] for r in lines})}
    return {
        "weights": {_reference_name(path.name): weights(path) for path in runs},
        "rows": {
            _reference_name(name): [
                [row["seed"], row["episode_return"], row["length"], row["agreement"]] for row in rows
            ]
            for name, rows in driven.items()
        },
    }


def _reference_name(name: str) -> str:
    return NAMES.get(name, name).replace(",time_unit=1.0", "")


def run(folder: Path) -> dict[str, Any]:
    """Weights and computed numbers of a run."""
    rows = []
    for row in RunFolder.open(folder).rows():
        keys = ("returns", "loss", "accuracy", "agreement") if "returns" in row else ("loss",)
        rows.append({"step": row["step"], **{key: row[key] for key in keys if key in row}})
    return {"weights": weights(folder), "rows": rows}


def weights(folder: Path) -> str:
    """Digests of the tensors of the last checkpoint, in an order that does not depend on names."""
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
    parser = argparse.ArgumentParser(description="Compare what the package computes with what was recorded.")
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
