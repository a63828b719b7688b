"""A Ray cluster of two machines of one CPU: the same results as here, also when a worker is killed in the middle."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nac_drive.data_collection.collect import collect
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import EnvConfig
from nac_drive.evaluation.evaluate import Evaluation, evaluate
from nac_drive.experiments import experiment
from nac_drive.experiments.compare import compare
from nac_drive.parallel import cluster
from nac_drive.parallel.cluster import ClusterError, ClusterPool, cluster_pool, has_gpus
from nac_drive.parallel.processes import worker_pool
from tests.data_collection.recordings import contents
from tests.nac_drive.small import TINY, config, dagger_config, results, train_dagger
from tests.parallel.work import DiesOnce, kill_itself, refuse, report, report_when_released, threads, visible_gpus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
VERSIONS = cluster._versions()
ENV = EnvConfig(max_steps=40)
TRACKS = [5, 3, 8, 1]


@pytest.fixture(scope="module", autouse=True)
def _short_zoom() -> None:
    """The zoom is as long as in the processes of the cluster."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Two machines of one CPU and one GPU.

    Ray only counts the GPU. Each machine has its own raylet; this process belongs to the first.
    """
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray")  # a cluster that `auto` does not find; its sockets need a short path
    machine = {
        "num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False, "no_monitor": True,
        "include_log_monitor": False, "temp_dir": folder,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_register_timeout_seconds", "600")  # a worker that imports for a minute is not killed
        patch.setenv("CUDA_VISIBLE_DEVICES", "99")  # a GPU that torch does not find
        patch.setenv("RAY_TMPDIR", folder)  # where it notes its address, in a folder that must be there
        Path(folder, "ray").mkdir()
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        patch.delenv("RAY_ADDRESS", raising=False)
        machines = Cluster(initialize_head=True, head_node_args=machine)
        try:
            machines.add_node(**machine)
            assert machines.address
            with cluster_pool(machines.address):  # a connection that is kept: a new one costs a second
                yield machines.address
        finally:
            machines.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
    assert not ray.is_initialized()


@pytest.fixture
def pool(address) -> Iterator[ClusterPool]:
    with worker_pool(0, address) as pool:
        assert isinstance(pool, ClusterPool)
        yield pool


def without_latency(evaluation: Evaluation) -> list[Any]:
    return [{**row.to_dict(), "latency_ms": None} for row in evaluation.rows]


def test_a_worker_killed_in_the_middle_changes_no_row(pool, tmp_path):
    here = evaluate(Controller("discrete"), TRACKS, env=ENV)
    there = evaluate(DiesOnce(tmp_path / "died"), TRACKS, env=ENV, pool=pool, name=here.rows[0].driver)
    assert (tmp_path / "died").exists()
    assert without_latency(there) == without_latency(here)


def test_both_machines_work_on_one_thread_and_in_order(pool, tmp_path):
    done = list(pool.imap(report, range(12)))
    assert [task for task, _ in done] == list(range(12))
    os.mkfifo(tmp_path / "pipe")  # task 0 ends after task 1 began, so two processes work at a time
    jobs = [(0, tmp_path / "pipe", None), (1, None, tmp_path / "pipe")]
    done += (pair := list(pool.imap(report_when_released, jobs)))
    assert [task for task, _ in pair] == [0, 1]
    assert len({process for _, process in pair}) == 2
    assert os.getpid() not in {process for _, process in done}
    assert sorted(task for task, _ in pool.imap_unordered(report, range(5))) == list(range(5))
    assert list(pool.imap(threads, [0])) == [1]


def test_a_task_has_a_gpu_to_itself_where_it_asks_for_one(address):
    assert has_gpus(address)
    with cluster_pool(address, gpus=1) as pool:
        assert pool.size() == 2
        assert list(pool.imap(visible_gpus, [0])) == ["99"]
    with (
        pytest.raises(ClusterError, match=r"has 2 GPUs, a task needs 3; pass --device cpu"),
        cluster_pool(address, gpus=3),
    ):
        pass


def test_an_error_of_the_work_comes_through(pool):
    with pytest.raises(ValueError, match=r"^no 3$"):
        list(pool.imap(refuse, [3]))


def test_a_task_that_always_dies_costs_no_other_and_is_one_line(address, monkeypatch):
    monkeypatch.setattr(cluster, "_ATTEMPTS", 1)
    with cluster_pool(address) as pool:
        ended = dict(pool.each(kill_itself, [1, 2, 3]))
        assert [ended[task].error.partition(" died")[0] for task in (1, 2, 3)] == ["", "ChildProcessError: a task", ""]
        ((_, refused),) = pool.each(refuse, [3])
        assert refused.error == "ValueError: no 3"
        with pytest.raises(ChildProcessError, match=r"^a task died 1 times on the cluster.*fewer CPUs"):
            list(pool.imap(kill_itself, [2]))


def test_a_machine_with_other_versions_is_refused_in_one_line(pool, monkeypatch):
    monkeypatch.setattr(cluster, "_versions", lambda: {**VERSIONS, "gymnasium": "0.1", "new": "1"})
    with pytest.raises(
        ClusterError, match=r"^machine \S+ has gymnasium \S+, new none, this one has gymnasium 0\.1"
    ) as at:
        list(pool.imap(report, [0]))
    assert "\n" not in str(at.value)


def test_a_dataset_is_that_of_one_process(address, tmp_path):
    settings: dict[str, Any] = {"env": ENV, "seeds": TRACKS[:3], "seed": 2}
    collect(tmp_path / "here", "controller", **settings)
    collect(tmp_path / "there", "controller", cluster=address, workers=0, **settings)
    here, there = contents(tmp_path / "here"), contents(tmp_path / "there")
    assert there == here


def test_dagger_is_that_of_one_process(pool, tmp_path, one_thread):
    settings = dagger_config("cnn", **TINY, rounds=1)
    train_dagger(settings, tmp_path / "here")
    train_dagger(settings, tmp_path / "there", pool=pool)
    assert results(tmp_path / "there") == results(tmp_path / "here")


def test_a_run_of_a_comparison_leaves_its_result_on_the_storage_of_all_machines(
    address, dataset, tmp_path, monkeypatch
):
    settings = config("cnn", epochs=1)
    arguments: dict[str, Any] = {"config": settings, "expert": "controller"}
    here = compare(("cnn",), dataset, [3], tmp_path / "here", device="cpu", **arguments)

    def refuse_here(*_: object) -> None:
        raise AssertionError("nothing may run on this machine beside the cluster")

    monkeypatch.setattr(experiment, "each_in_a_process", refuse_here)
    asked = []
    pools = experiment.cluster_pool
    monkeypatch.setattr(experiment, "cluster_pool", lambda *args, gpus: asked.append(gpus) or pools(*args, gpus=gpus))
    there = compare(("cnn",), dataset, [3], tmp_path / "there", cluster=address, workers=0, **arguments)
    assert asked == [1]  # as the cluster has GPUs
    assert [[row.with_metrics(latency_ms=0) for row in driver.evaluation.rows] for driver in there.drivers] == [
        [row.with_metrics(latency_ms=0) for row in driver.evaluation.rows] for driver in here.drivers
    ]
    assert (tmp_path / "there" / "cnn-0" / "metrics.jsonl").exists()
    with pytest.raises(ClusterError, match=r"does not see .*; put it on storage that all machines share"):
        experiment._on_cluster(os.getcwd(), tmp_path / "nowhere", len, ())
