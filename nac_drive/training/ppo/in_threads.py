"""Work that threads share.

Compiled code and torch leave Python's lock to the other threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

from nac_drive.policies.ops.threads import one_thread

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def in_threads(function: Callable[[_Task], _Result], tasks: Sequence[_Task], threads: int) -> list[_Result]:
    """Call `function` with every task, in threads.

    Torch computes on one thread in each call.

    Args:
        function: Must not depend on the order of the calls.
        tasks: Its arguments.
        threads: With 1, this thread calls it.

    Returns:
        The results in the order of the tasks.
    """
    with one_thread():  # a new thread begins with this number
        if threads == 1 or len(tasks) == 1:
            return [function(task) for task in tasks]
        futures = [_pool(threads).submit(_alone, function, task) for task in tasks]
        try:
            return [future.result() for future in futures]
        finally:  # an interrupt or an error: nothing goes on behind the caller's back
            wait(futures)


def _alone(function: Callable[[_Task], _Result], task: _Task) -> _Result:
    with one_thread():
        return function(task)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="training")
