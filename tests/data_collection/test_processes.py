"""Work in parallel processes: in order, on one thread each, and never hanging."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nac_drive.data_collection.processes import Workers, each_in_a_process, map_in_processes, worker_pool

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    with Workers(2) as workers:
        yield workers


def where(task: int) -> tuple[int, int, int]:
    time.sleep(0.2 / (1 + task))  # the later, the faster
    return task, os.getpid(), torch.get_num_threads()


def where_both_are(job: tuple[int, Path]) -> tuple[int, int, int]:
    """`where`, once two processes are at work: the first could do everything while the second still starts."""
    task, present = job
    (present / str(os.getpid())).touch()
    late = time.monotonic() + 30.0
    while len(list(present.iterdir())) < 2 and time.monotonic() < late:
        time.sleep(0.01)
    return where(task)


def kill_itself(task: int) -> int:
    if task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def refuse(task: int) -> int:
    raise ValueError(f"no {task}")


def test_results_come_in_order_or_as_they_come_from_processes_of_one_thread(pool, tmp_path):
    results = list(pool.imap(where_both_are, [(task, tmp_path) for task in range(6)]))
    assert [task for task, _, _ in results] == list(range(6))
    assert {threads for _, _, threads in results} == {1}
    assert len({process for _, process, _ in results} - {os.getpid()}) == 2
    assert sorted(task for task, _, _ in pool.imap_unordered(where, range(6))) == list(range(6))


def test_what_the_work_raises_comes_through(pool):
    with pytest.raises(ValueError, match="no 3"):
        list(pool.imap(refuse, [3]))
    assert next(pool.imap(where, [4]))[0] == 4


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", ["imap", "imap_unordered"])
def test_a_killed_worker_is_an_error_and_no_hang(way):
    with Workers(2) as workers:
        for _ in range(2):  # and so is whatever is asked of the pool after that
            with pytest.raises(ChildProcessError, match=r"one of 2 worker processes died.*use fewer workers"):
                list(getattr(workers, way)(kill_itself, range(8)))


@pytest.mark.timeout(60)
def test_workers_end_with_a_killed_parent():
    script = (
        "import time; from nac_drive.data_collection.processes import Workers\n"
        "from tests.data_collection.test_processes import where\n"
        "if __name__ == '__main__':\n"
        "    workers = Workers(1)\n"
        "    print(next(workers.imap(where, [0]))[1], flush=True)\n"
        "    time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) != parent.pid
    parent.kill()
    parent.wait()
    assert parent.stdout.read() == ""  # the end comes when nobody holds the pipe any more, the worker included


@pytest.mark.timeout(60)
def test_an_interruption_ends_workers_at_once_and_is_told_once():
    script = (
        "import signal; from nac_drive.data_collection.processes import Workers\n"
        "from tests.data_collection.test_processes import where\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a test run in the background ignores it
        "    with Workers(2) as workers:\n"
        "        processes = set()\n"
        "        while len(processes) < 2:\n"
        "            processes |= {process for _, process, _ in workers.imap(where, [0, 0])}\n"
        "        print('both work', flush=True)\n"
        "        list(workers.imap(where, [-0.9999, -0.9999]))"  # sleeps for half an hour
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPOSITORY, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert parent.stdout is not None
    assert parent.stdout.readline() == "both work\n"
    os.killpg(parent.pid, signal.SIGINT)
    told = parent.communicate()[0]
    assert told.count("Traceback") == 1
    assert told.endswith("KeyboardInterrupt\n")


def test_one_worker_is_no_pool():
    with worker_pool(1) as pool:
        assert pool is None
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"), worker_pool(0):
        pass
    assert list(map_in_processes(kill_itself, [0, 1], 1)) == [0, 1]


def test_one_thread_is_for_a_while():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.timeout(60)
def test_a_process_that_dies_costs_its_own_task_alone():
    ended = dict(each_in_a_process(die_or_leave, [0, 1, 2, 3], 2))
    assert ended == {0: 0, 1: 3, 2: -signal.SIGKILL, 3: 0}


def die_or_leave(task: int) -> None:
    assert torch.get_num_threads() == 1
    kill_itself(task)
    if task == 1:
        sys.exit(3)
