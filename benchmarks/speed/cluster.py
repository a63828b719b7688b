"""The measured rates behind docs/speed.md: `rates` of one core, and what a Ray cluster adds (`ray`).

Rates are frames per second of processor time, so that other work on the machine does not change them.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

import nac_drive as nd
from nac_drive.data_collection.collect import append_episodes
from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.episode_file import EncodedEpisode, episode_file
from nac_drive.data_collection.dataset.meta import Meta
from nac_drive.envs import EnvConfig
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.parallel.processes import worker_pool
from nac_drive.policies import Driver, DriverConfig

EPISODE_MB = 2.0
"""Size of the results that stand for encoded episodes."""


@dataclass(frozen=True)
class Rates:
    """Frames per core-second of collect and evaluate, bytes per frame."""

    tracks: int = 2
    """Episodes of each measurement."""

    def run(self) -> None:
        tracks = list(range(self.tracks))
        with tempfile.TemporaryDirectory() as folder:
            started = time.process_time()
            data = nd.collect(Path(folder) / "data", "expert", env=EnvConfig(), seeds=tracks)
            spent, frames = time.process_time() - started, sum(row["length"] for row in data.rows)
            size = sum(file.stat().st_size for file in (data.path / "episodes").iterdir())
        print(
            f"collect, expert: {frames / spent:.0f} frames/s a core, {size / frames:.0f} bytes a frame, "
            f"{frames / self.tracks:.0f} frames an episode",
            flush=True,
        )
        expert = nd.resolve_driver("expert")
        learners = {"champion": nd.resolve_driver("champion"), "lstm": Driver(DriverConfig(core="lstm")).eval()}
        for name, driver in learners.items():
            for queried in (None, expert):
                started = time.process_time()
                rows = evaluate(driver, tracks, env=EnvConfig(), expert=queried).rows
                spent = time.process_time() - started
                frames = sum(row.metrics["length"] for row in rows)
                print(
                    f"evaluate, {name}{', expert queried' if queried else ''}: {frames / spent:.0f} frames/s a core, "
                    f"{frames / self.tracks:.0f} frames an episode",
                    flush=True,
                )


@dataclass(frozen=True)
class Overhead:
    """Processor time of the head per task, on a cluster of small machines that are all this one."""

    machines: int = 4
    """Machines of one CPU."""
    tasks: int = 400
    """Tasks of each measurement."""

    def run(self) -> None:
        from ray.cluster_utils import Cluster

        folder = tempfile.mkdtemp(prefix="ray")
        os.environ["PYTHONPATH"] = os.getcwd()
        machine = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False, "temp_dir": folder}
        cluster = Cluster(initialize_head=True, head_node_args=machine)
        try:
            for _ in range(self.machines - 1):
                cluster.add_node(**machine)
            with worker_pool(0, cluster.address) as pool, tempfile.TemporaryDirectory() as data:
                assert pool is not None
                list(pool.imap_unordered(abs, range(4 * self.machines)))  # processes start, and import
                self._report("a task without work", pool.imap_unordered(abs, range(self.tasks)))
                driver = pickle.dumps(nd.resolve_driver("champion"))
                self._report(
                    f"a task that gets a driver of {len(driver) / 1e6:.1f} MB",
                    pool.imap_unordered(driver.count, [0] * self.tasks),
                )
                dataset = Demonstrations.create(Path(data) / "data", Meta(EnvConfig(), "none", "", None, 0))
                rows = ({"index": index, "file": episode_file(index)} for index in range(self.tasks))
                encode = partial(EncodedEpisode, content=os.urandom(int(EPISODE_MB * 1e6)))
                episodes = append_episodes(dataset, pool.imap_unordered(encode, rows))
                self._report(f"an episode of {EPISODE_MB} MB, written to disk", episodes)
        finally:
            cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)

    def _report(self, name: str, results: Any) -> None:
        started, spent = time.perf_counter(), time.process_time()
        assert len(list(results)) == self.tasks
        wall, spent = time.perf_counter() - started, time.process_time() - spent
        print(
            f"{name}: {1e3 * spent / self.tasks:.2f} ms of the head, {1e3 * wall / self.tasks:.1f} ms wall", flush=True
        )


if __name__ == "__main__":
    tyro.cli(Annotated[Rates, tyro.conf.subcommand("rates")] | Annotated[Overhead, tyro.conf.subcommand("ray")]).run()
