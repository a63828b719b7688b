"""The main process of several that train together. Free of torch: the command line asks at once."""

from __future__ import annotations

import os


def is_main_process() -> bool:
    """Return whether this process writes, validates and reports.

    Of several that train together, the first one does.

    The variables come from torchrun (RANK), and from lightning-fabric's own launcher (NODE_RANK and LOCAL_RANK).
    """
    ranks = ("RANK",) if "RANK" in os.environ else ("NODE_RANK", "LOCAL_RANK")
    return all(os.environ.get(rank, "0") == "0" for rank in ranks)


def is_first_here() -> bool:
    """Return whether this process is its machine's first."""
    return os.environ.get("LOCAL_RANK", "0") == "0"
