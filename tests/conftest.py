"""What all tests share. Slow imports stand in functions: the process that hands out the tests does without them."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

DEAR = (
    "test_documented_commands", "test_ppo_update", "test_first_drive", "test_cluster", "test_compare", "test_your_road",
    "test_python_device", "test_tuning", "test_shipped_drivers", "test_pictures", "test_gpu_script", "test_demo",
    "test_export", "test_full_disk", "test_fused", "test_train_resumed", "test_fuzz", "test_reproduce_papers",
    "test_own_driver_doors", "test_ppo", "test_batched_acts", "test_udacity", "test_front_door", "test_layer_use",
    "test_simulator", "test_cli", "test_imports", "test_dagger_resumed",
)  # fmt: skip
"""Test modules that take longest, which begin first, so that processes end together."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option."""
    parser.addoption("--gpu", action="store_true", help="let tests see the GPU: the contract of cores runs there, too")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Prepare a process that runs tests. Bits are compared on the CPU, so `auto` must find no GPU."""
    if not session.config.getoption("gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        from tests.process import prepare

        prepare()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules of `DEAR`."""
    rank = {name: number for number, name in enumerate(DEAR)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(DEAR)))


def pytest_collection_finish() -> None:
    """Leave modules and tests out of garbage collection. Some libraries collect after every call."""
    from tests.forked import start_server

    gc.collect()
    gc.freeze()
    start_server()


@pytest.fixture(scope="module", autouse=True)
def _modules_of_a_file_are_left_out_too() -> Iterator[None]:
    yield
    gc.collect(1)
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _parts_of_a_file_are_forgotten() -> Iterator[None]:
    """Plug-ins and parts that a file adds are unknown to the next."""
    from tests.own_parts import forgotten

    with forgotten():
        yield


def pytest_sessionfinish() -> None:
    """Let Python end as usual: triton reports what was never collected."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def quick_exports() -> None:
    """Exports to ONNX read the translations of torch's operators once. torch reads them for every export."""
    from tests.process import read_translations_once

    read_translations_once()


@pytest.fixture
def full_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures have their full size. In other tests they are small."""
    from tests.process import USERS_DPI

    monkeypatch.setattr("nac_drive.storage.figure.DPI", USERS_DPI)


@pytest.fixture
def spawned() -> Iterator[None]:
    """Worker processes start as they do for users. They import everything."""
    from tests.forked import workers_are_spawned

    with workers_are_spawned():
        yield


@pytest.fixture(autouse=True)
def _no_curve(monkeypatch: pytest.MonkeyPatch):
    """Runs draw no figure of their curve, which takes longer than they do. test_curve.py draws it."""
    monkeypatch.setattr("nac_drive.training.plan.draw_curve", lambda *_: None)
