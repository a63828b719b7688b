from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.parallel.processes import Pool, worker_pool
from nac_drive.policies.ops.threads import one_thread
from tests.nac_drive.small import config, dagger_config, demonstrations, short_zoom, train, train_dagger


@pytest.fixture(scope="module", autouse=True)
def _short_zoom() -> Iterator[None]:
    with short_zoom():
        yield


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> Demonstrations:
    """Demonstrations with discrete actions; read only."""
    with short_zoom():
        return demonstrations(tmp_path_factory.mktemp("small") / "dataset")


@pytest.fixture(scope="session")
def continuous(tmp_path_factory) -> Demonstrations:
    """Demonstrations in continuous control; read only."""
    with short_zoom():
        return demonstrations(tmp_path_factory.mktemp("small") / "dataset", "continuous")


@pytest.fixture(scope="session")
def workers() -> Iterator[Pool | None]:
    """Two processes for all tests; they start with the first work."""
    with worker_pool(2) as pool:
        yield pool


@pytest.fixture(name="one_thread", scope="module")
def _one_thread():
    """One thread: runs compared bit for bit add up in order."""
    with one_thread():
        yield


@pytest.fixture(scope="session")
def trained(dataset, tmp_path_factory) -> Path:
    """A finished run of `train` with `config("cnn")`; read only."""
    run = tmp_path_factory.mktemp("trained") / "run"
    with one_thread(), short_zoom():
        train(config("cnn"), dataset, run)
    return run


@pytest.fixture(scope="session")
def straight(tmp_path_factory) -> Path:
    """A run of `dagger` without interruption; read only."""
    run = tmp_path_factory.mktemp("straight") / "run"
    with one_thread(), short_zoom():
        train_dagger(dagger_config(), run)
    return run
