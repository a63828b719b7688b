from __future__ import annotations

import pytest

from data_collection.dataset import Demonstrations
from data_collection.processes import one_thread
from tests.nac_drive.small import demonstrations


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> Demonstrations:
    """Of five actions; read only."""
    return demonstrations(tmp_path_factory.mktemp("small") / "dataset")


@pytest.fixture(scope="session")
def continuous(tmp_path_factory) -> Demonstrations:
    """Of continuous control; read only."""
    return demonstrations(tmp_path_factory.mktemp("small") / "dataset", "continuous")


@pytest.fixture(name="one_thread", scope="module")
def _one_thread():
    """Trainings that are compared bit for bit add up in one order."""
    with one_thread():
        yield
