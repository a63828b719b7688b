"""Threads may check their first episodes at the same moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
SCRIPT = """
import sys; sys.setswitchinterval(1e-6)
from concurrent.futures import ThreadPoolExecutor
from importlib import reload
from threading import Barrier
from nac_drive.data_collection.dataset import rows

for _ in range(100):
    reload(rows)  # types that no thread has used
    barrier = Barrier(8)

    def check(_):
        barrier.wait()
        try:
            rows.checked_summary({"length": 3})
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(8) as threads:
        messages = set(threads.map(check, range(8)))
    assert len(messages) == 1 and "missing required field" in messages.pop()
"""


def test_many_threads_check_their_first_summary_at_once():
    """The alternative is a segmentation fault in msgspec."""
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=REPOSITORY, check=True, timeout=600)
