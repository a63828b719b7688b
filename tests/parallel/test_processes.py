"""Work in parallel processes: in order, on one thread each, and never hanging."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import current_process
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import nac_drive as nd
from nac_drive.envs import EnvConfig, make_vec_env
from nac_drive.parallel.processes import (
    MOST_WORKERS,
    Workers,
    default_workers,
    each_in_a_process,
    map_in_processes,
    number_of_workers,
    worker_pool,
)
from nac_drive.parallel.spawning import reason_of_end
from tests.parallel.work import (
    kill_itself,
    leave_or_die,
    meet_and_stay,
    refuse,
    report,
    report_when_released,
    threads,
)

REPOSITORY = Path(__file__).parents[2]
HANGS = pytest.mark.timeout(1200)
"""Ends a test that hangs; no test waits for a time."""


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    with Workers(2) as workers:
        yield workers


@HANGS
def test_results_come_in_the_order_of_the_tasks(pool, tmp_path):
    os.mkfifo(tmp_path / "pipe")  # task 0 ends after task 5 began, so another process does 1 to 5
    jobs = [(0, tmp_path / "pipe", None), *((task, None, None) for task in range(1, 5)), (5, None, tmp_path / "pipe")]
    results = list(pool.imap(report_when_released, jobs))
    assert [task for task, _ in results] == list(range(6))
    processes = [process for _, process in results]
    assert set(processes[1:]) & {processes[0], os.getpid()} == set()


@HANGS
def test_results_come_as_they_are_done(pool, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    results = pool.imap_unordered(report_when_released, [(0, tmp_path / "pipe", None), (1, None, None)])
    assert next(results)[0] == 1
    (tmp_path / "pipe").write_bytes(b"")
    assert [task for task, _ in results] == [0]


@HANGS
def test_errors_of_the_work_come_through_and_workers_have_one_thread(pool):
    with pytest.raises(ValueError, match="no 3"):
        list(pool.imap(refuse, [3]))
    assert list(pool.imap(threads, [4])) == [1]


@HANGS
def test_a_killed_worker_is_an_error_and_no_hang():
    with Workers(2) as workers:
        for way in (workers.imap, workers.imap_unordered):  # the second way is refused like the first one
            with pytest.raises(ChildProcessError, match=r"one of 2 worker processes died.*use fewer workers"):
                list(way(kill_itself, range(8)))
        with pytest.raises(ChildProcessError, match="one of 2 worker processes died"):
            nd.evaluate("nobody", [1], pool=workers)  # before anything else


def test_a_pool_whose_block_has_ended_is_named_before_anything_else():
    with Workers(2) as workers:
        pass
    for call in (lambda: nd.evaluate("nobody", [1], pool=workers), lambda: workers.imap(str, [1]).__next__()):
        with pytest.raises(ValueError, match=r"pool: its `with worker_pool\(\.\.\.\)` block has ended; work inside"):
            call()


@HANGS
def test_workers_end_with_a_killed_parent():
    script = (
        "import signal; from nac_drive.parallel.processes import Workers\n"
        "from tests.parallel.work import report\n"
        "if __name__ == '__main__':\n"
        "    workers = Workers(1)\n"
        "    print(next(workers.imap(report, [0]))[1], flush=True)\n"
        "    signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) != parent.pid
    parent.kill()
    parent.wait()
    assert parent.stdout.read() == ""  # the end comes when nobody holds the pipe any more, the worker included


@HANGS
def test_an_interruption_ends_workers_at_once_and_is_reported_once(tmp_path):
    script = (
        "import signal; from pathlib import Path as P; from nac_drive.parallel.processes import Workers\n"
        "from tests.parallel.work import meet_and_stay\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a test run in the background ignores it
        "    with Workers(2) as workers:\n"
        "        list(workers.imap(meet_and_stay, [(P('ready 0'), P('leave')), (P('ready 1'), P('leave'))]))"
    )
    for name in ("ready 0", "ready 1", "leave"):
        os.mkfifo(tmp_path / name)
    parent = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        start_new_session=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    for worker in range(2):
        (tmp_path / f"ready {worker}").read_bytes()  # until it is there
    os.killpg(parent.pid, signal.SIGINT)
    output = parent.communicate()[0]
    assert output.count("Traceback") == 1
    assert output.endswith("KeyboardInterrupt\n")


def test_one_worker_is_no_pool():
    with worker_pool(1) as pool:
        assert pool is None
    assert list(map_in_processes(report, [0, 1], 1)) == [(0, os.getpid()), (1, os.getpid())]


@pytest.mark.parametrize("workers", [-1, MOST_WORKERS + 1, 10**9])
def test_a_number_of_workers_out_of_range_is_refused_everywhere(workers):
    refused = pytest.raises(ValueError, match=f"workers must lie in 0 to 1,024, where 0 is one per core, got {workers}")
    with refused, worker_pool(workers):
        pass
    with refused:
        map_in_processes(report, [], workers)  # without any work, too
    with refused:
        next(each_in_a_process(leave_or_die, [0], workers))


def test_no_number_of_workers_is_one_per_core():
    assert number_of_workers(0) == default_workers() >= 1
    assert number_of_workers(MOST_WORKERS) == MOST_WORKERS


@HANGS
def test_an_interruption_while_workers_import_is_reported_once(tmp_path):
    (tmp_path / "main.py").write_text(
        "import signal; from pathlib import Path as P\n"
        "from nac_drive.parallel.processes import Workers, each_in_a_process\n"
        "from tests.parallel.work import report\n"
        "if __name__ == '__mp_main__':\n"  # a worker imports the script
        "    P('imports').write_bytes(b''); P('never').read_bytes()\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    with Workers(1) as workers:\n"
        "        list(workers.imap(report, [0]))"
    )
    for name in ("imports", "never"):
        os.mkfifo(tmp_path / name)
    parent = subprocess.Popen(
        [sys.executable, "main.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        start_new_session=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    (tmp_path / "imports").read_bytes()  # until it imports
    os.killpg(parent.pid, signal.SIGINT)
    output = parent.communicate()[0]  # ends when the worker has ended, too
    assert output.count("Traceback") == 1
    assert output.endswith("KeyboardInterrupt\n")


@HANGS
def test_running_work_is_given_up_when_the_block_is_interrupted(tmp_path):
    pipes = [tmp_path / name for name in ("ready", "never")]
    for pipe in pipes:
        os.mkfifo(pipe)

    def interrupt() -> None:
        pipes[0].read_bytes()  # until it works
        os.kill(os.getpid(), signal.SIGUSR1)

    def handler(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt), Workers(1) as workers:
            next(workers.imap(meet_and_stay, [pipes]))
    finally:
        signal.signal(signal.SIGUSR1, before)


@HANGS
def test_a_process_that_dies_costs_its_own_task_alone():
    ended = dict(each_in_a_process(leave_or_die, range(5), 2))
    assert [ended[task].value for task in (0, 3)] == [bytes(200_000)] * 2
    assert [ended[task].error for task in range(5)] == [
        "", "its process died (3)", "its process died (-9)", "", "ValueError: no 4"
    ]  # fmt: skip
    assert "leave_or_die" in ended[4].traceback


@HANGS
@HANGS
def test_classes_of_a_notebook_reach_the_processes(pool):
    """They are in no file that can be imported."""
    notebook: dict[str, Any] = {"__name__": "__main__"}
    exec("class Cell:\n    def __init__(self, n): self.n = n\n\ndef twice(cell): return 2 * cell.n", notebook)
    cells = [notebook["Cell"](number) for number in range(3)]
    assert list(pool.imap(notebook["twice"], cells)) == [0, 2, 4]
    assert sorted(outcome.value for _, outcome in each_in_a_process(notebook["twice"], cells, 2)) == [0, 2, 4]


def test_a_task_is_taken_when_a_process_is_free():
    taken = []
    ends = each_in_a_process(leave_or_die, (taken.append(task) or task for task in (1, 3, 1)), 2)
    next(ends)
    assert taken == [1, 3]
    assert len(list(ends)) == 2
    assert taken == [1, 3, 1]


def test_a_daemon_starts_no_workers(monkeypatch):
    """As a worker of multiprocessing.Pool is one, in which Python itself fails an assertion."""
    monkeypatch.setitem(vars(current_process())["_config"], "daemon", True)
    for start in (lambda: Workers(2), lambda: next(each_in_a_process(leave_or_die, [0], 2))):
        with pytest.raises(
            ChildProcessError, match=r"this process is itself a worker, of multiprocessing\.Pool"
        ) as caught:
            start()
        assert "\n" not in str(caught.value)
    with pytest.raises(ChildProcessError, match="make_vec_env with processes=0, or use concurrent"):
        make_vec_env(EnvConfig(), 1, processes=1)


def test_a_worker_that_imports_the_script_starts_no_workers(monkeypatch):
    monkeypatch.setattr(current_process(), "_inheriting", True, raising=False)
    with pytest.raises(ChildProcessError, match=r"starts workers again; put the code .* in a file, or pass workers=1"):
        Workers(2)


def test_an_end_by_an_error_is_no_lack_of_memory():
    assert reason_of_end([None, 0, -9]) == "died, perhaps out of memory"
    assert reason_of_end([1, -9]) == "died, perhaps out of memory"  # the first lost its connection to the second
    assert reason_of_end([-15, 1]).startswith("ended with an error, which is printed above")


@pytest.mark.slow
@HANGS
@pytest.mark.parametrize(
    "call",
    [
        'nd.collect("out", "controller", seeds=[1, 2], workers=2, env=nd.EnvConfig(max_steps=3))',
        'nd.reproduce("thesis-6.6", "out", workers=2)',
    ],
)
def test_a_script_that_starts_workers_again_learns_why_and_runs_once_it_is_corrected(call, tmp_path):
    def run(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "user.py").write_text(f"import nac_drive as nd\n{text}\n")
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "user.py"]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)

    wrong = run(call)
    assert "a worker imports the script, which starts workers again; put the code" in wrong.stderr
    assert "already exists" not in wrong.stderr
    assert wrong.returncode == 1
    right = run(f"if __name__ == '__main__':\n    {call}")
    assert right.returncode == 0, right.stderr
