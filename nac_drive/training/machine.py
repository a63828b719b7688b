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
    commit = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "started": datetime.now(UTC).isoformat(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "versions": installed_versions(),
        "git_commit": commit or None,
        "code_sha256": code_sha256(),
    }
