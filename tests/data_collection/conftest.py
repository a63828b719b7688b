"""Datasets that many tests read, collected once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.replay import save_action_log
from tests.data_collection.recordings import collect_small


@pytest.fixture(scope="session")
def recorded(tmp_path_factory) -> Path:
    """Three episodes under noise; not to be changed."""
    return collect_small(tmp_path_factory.mktemp("recorded") / "dataset").path


@pytest.fixture
def copy(recorded, tmp_path) -> Path:
    """A copy of it."""
    return shutil.copytree(recorded, tmp_path / "dataset")


@pytest.fixture(scope="session")
def log_file(recorded, tmp_path_factory) -> Path:
    """Its action log; not to be changed."""
    path = tmp_path_factory.mktemp("action_log") / "episodes.npz"
    save_action_log(Demonstrations.open(recorded), path)
    return path
