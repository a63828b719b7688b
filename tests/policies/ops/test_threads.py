"""One thread inside the block, the number of before after it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from nac_drive.policies import Driver, DriverConfig
from nac_drive.policies.ops.threads import one_thread


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_the_block_has_one_thread_and_the_number_of_before_comes_back() -> None:
    with one_thread():
        assert torch.get_num_threads() == 1
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1, "the inner block gives back the number of the outer one"
    assert torch.get_num_threads() == 3


def test_an_error_inside_gives_the_threads_back_too() -> None:
    with pytest.raises(KeyError), one_thread():
        raise KeyError
    assert torch.get_num_threads() == 3


def test_where_one_thread_is_set_it_stays() -> None:
    torch.set_num_threads(1)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("training", [False, True])
def test_a_driver_acts_on_one_thread_and_learns_on_all(training: bool) -> None:
    driver = Driver(DriverConfig(core="lstm")).train(training)
    seen: list[int] = []
    for part in (driver.encoder, driver.core, driver.action_head):
        part.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    frames = np.zeros((2, 96, 96, 3), np.uint8)
    driver.act(frames[0], driver.begin(), 0.0)
    driver.predict(frames)
    assert seen == [1] * 6
    assert torch.get_num_threads() == 3
    assert driver.training == training
    driver(torch.from_numpy(frames).unsqueeze(1), torch.zeros(2, 1))
    assert seen[6:] == [3] * 3


def test_a_driver_that_refuses_a_frame_gives_the_threads_back() -> None:
    with pytest.raises(ValueError, match="frames: shape must be"):
        Driver(DriverConfig(core="cnn")).predict(np.zeros((5, 7, 3), np.uint8))
    assert torch.get_num_threads() == 3
