"""The machine of a training."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from nac_drive.parallel.versions import code_sha256, installed_versions


def describe_machine() -> dict[str, Any]:
    """Return versions, hardware and git commit.

    A reader needs them to run the training again.
    """
    return {
        "started": datetime.now(UTC).isoformat(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "versions": installed_versions(),
        "git_commit": _commit(),
        "code_sha256": code_sha256(),
    }


def _commit() -> str | None:
    """Return the commit of nac-drive's own repository.

    None where git is missing, and where the package is installed, also within another repository.
    """
    root = Path(__file__).parents[2]
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--show-toplevel", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    top, commit = answer.stdout.splitlines()
    return commit if Path(top).resolve() == root.resolve() else None
