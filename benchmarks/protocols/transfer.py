"""Does a driver of one road drive on another one?

    python benchmarks/protocols/transfer.py --car-racing runs/seat --metadrive runs/lanes --out transfer

Both drivers see the same camera: CarRacing's seat, and MetaDrive's lanes without other cars. In each direction a few
episodes of the other road are recorded. The driver is measured there at once, and after some epochs on these episodes.
Beside it stand a network that learns from the same episodes without any experience, and the driver that was trained on
that road. What is finished is kept in --out, and the same command goes on.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import tyro

import nac_drive as nd
from nac_drive.envs import METADRIVE_EMPTY
from nac_drive.evaluation.intervals import bootstrap
from nac_drive.evaluation.results import EpisodeResult
from nac_drive.parallel.processes import worker_pool
from nac_drive.storage.write import write_atomically
from nac_drive.training.config import EvalConfig, OptimConfig


@dataclass(frozen=True)
class Road:
    """A road, and who records there."""

    env: nd.EnvConfig
    expert: str
    noise: nd.NoiseConfig
    """Action noise of the recording."""


ROADS = {
    "CarRacing": Road(nd.EnvConfig("continuous", view="seat"), "controller", nd.NoiseConfig(0.15, 4.0)),
    "MetaDrive": Road(nd.EnvConfig(environment=METADRIVE_EMPTY), "metadrive-ppo", nd.NoiseConfig(0.03, 2.0)),
}


@dataclass(frozen=True)
class Transfer:
    """Settings."""

    out: Path
    car_racing: Path
    """A run of CarRacing's seat, continuous control."""
    metadrive: Path
    """A run of MetaDrive's lanes, with the same core and encoder."""
    episodes: int = 12
    """Recorded episodes of the other road."""
    epochs: int = 4
    tracks: str = "test-20"
    workers: int = 2


def adopted(source: Path, road: Road, folder: Path) -> Path:
    """Save a driver as if it had been trained elsewhere.

    Training there can then go on from it.
    """
    driver = nd.load_driver(source)
    driver.config = replace(driver.config, nominal_dt=road.env.spec.nominal_dt)
    return nd.save_driver(folder, driver, env=asdict(road.env))


def trained(settings: Transfer, target: str, name: str, start: Path | None) -> Path:
    """Train on a few episodes of a road.

    It begins with a driver or with random weights. A finished run is kept.
    """
    road, run = ROADS[target], settings.out / f"{target}-{name}"
    if not (run / "finished").exists():
        data = nd.collect(
            settings.out / f"{target}-data", road.expert, env=road.env, noise=road.noise, workers=settings.workers,
            seeds=range(settings.episodes), resume=(settings.out / f"{target}-data").exists(),
        )  # fmt: skip
        config = nd.TrainConfig(
            driver=replace(nd.load_driver(settings.metadrive).config, nominal_dt=road.env.spec.nominal_dt),
            optim=OptimConfig(1e-3, init_from=start),
            validation=EvalConfig(tracks="val-2"), epochs=settings.epochs, validate_every=settings.epochs,
        )  # fmt: skip
        nd.train(config, data, run, resume=(run / "config.yaml").exists())
        (run / "finished").touch()
    return run


def drivers(settings: Transfer, target: str) -> Iterator[tuple[str, Path]]:
    """Name and folder of every driver on a road."""
    runs = {"CarRacing": settings.car_racing, "MetaDrive": settings.metadrive}
    (other,) = (run for name, run in runs.items() if name != target)
    yield "the other road's driver, at once", other
    start = adopted(other, ROADS[target], settings.out / f"{target}-adopted")
    yield "the other road's driver, fine-tuned", trained(settings, target, "fine-tuned", start)
    yield "random weights, the same episodes", trained(settings, target, "scratch", None)
    yield "the driver of this road", runs[target]


def rows(settings: Transfer, target: str, name: str, driver: Path) -> list[EpisodeResult]:
    """Drive the tracks, or read what was driven before."""
    file = settings.out / f"{target}-{name.replace(' ', '-')}.json"
    if not file.exists():
        with worker_pool(settings.workers) as pool, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it was trained elsewhere
            evaluation = nd.evaluate(driver, settings.tracks, env=ROADS[target].env, pool=pool)
        write_atomically(file, json.dumps([row.to_dict() for row in evaluation.rows]).encode())
    return [EpisodeResult.from_dict(row) for row in json.loads(file.read_text())]


def main() -> None:
    """Print one line for every driver on every road."""
    settings = tyro.cli(Transfer, description=__doc__)
    settings.out.mkdir(parents=True, exist_ok=True)
    print("| road | driver | completion % [95 %] | return [95 %] | off the road | finished |")
    print("|---|---|---:|---:|---:|---:|")
    for target in ROADS:
        for name, driver in drivers(settings, target):
            driven = rows(settings, target, name, driver)
            completion = np.array([100 * row.metrics["completion"] for row in driven])
            returns = np.array([row.episode_return for row in driven])
            off = np.mean([row.metrics["off_road_events"] for row in driven])
            finished = sum(bool(row.metrics["lap_finished"]) for row in driven)
            cells = (bootstrap(completion[None]).text(".0f"), bootstrap(returns[None]).text(".0f"), f"{off:.2f}")
            print(f"| {target} | {name} | {' | '.join(cells)} | {finished} of {len(driven)} |", flush=True)


if __name__ == "__main__":
    main()
