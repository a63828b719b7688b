"""The main process of several that train together. Free of torch: the command line asks at once."""

from __future__ import annotations

import os


def is_main_process() -> bool:
    """Return whether this process writes, validates and reports: of several that train together, the first one.

    The variables are those of torchrun (RANK), and of lightning-fabric's own launcher (NODE_RANK and LOCAL_RANK).
    """
    ranks = ("RANK",) if "RANK" in os.environ else ("NODE_RANK", "LOCAL_RANK")
    return all(os.environ.get(rank, "0") == "0" for rank in ranks)
