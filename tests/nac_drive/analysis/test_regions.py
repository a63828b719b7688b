"""The regions of a frame, beside the colours that gymnasium itself draws there."""

from __future__ import annotations

import numpy as np
import pytest

from nac_drive.analysis.regions import fractions
from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import EnvConfig, Step, make_env, rollout
from nac_drive.envs.regions import REGIONS, regions


@pytest.fixture(scope="module")
def drive():
    """Frames with their labels: the zoom-in, and every 40th frame of a lap."""
    env, found = make_env(EnvConfig("continuous", max_steps=420)), []

    def note(step: Step) -> None:
        if step.index in (5, 20) or step.index % 40 == 39:
            found.append((env.unwrapped.state.copy(), regions(env)))  # type: ignore[attr-defined]

    rollout(env, Controller("continuous"), 900_000, subscribers=[note])
    env.close()
    return found


def test_road_and_grass_have_their_colours(drive):
    for frame, labels in drive:
        frame = frame.astype(int)
        grey = np.ptp(frame, axis=2) < 12
        green = (frame[..., 1] > frame[..., 0] + 40) | (frame.max(axis=2) < 20)  # black beyond the playfield
        for name, has_colour in (("far road", grey), ("near road", grey), ("road behind", grey), ("grass", green)):
            inside = labels == REGIONS.index(name)
            if inside.sum() > 30:
                assert has_colour[inside].mean() > 0.97, name
    for frame, labels in drive[2:]:  # after the zoom-in
        grey = np.ptp(frame.astype(int), axis=2) < 12
        border = np.abs(np.diff(grey[:84].astype(int), axis=1)) > 0  # the road's edge, seen from left to right
        around = labels[:84, 1:][border]
        assert np.isin(around, [REGIONS.index("verge"), REGIONS.index("car")]).mean() > 0.9


def test_every_region_is_there_and_the_car_is_red(drive):
    seen = {int(label) for _, labels in drive for label in np.unique(labels)}
    assert seen == set(range(len(REGIONS)))
    frame, labels = drive[-1]
    red = (frame[..., 0] > 150) & (frame[..., 1] < 60)
    assert red[labels == REGIONS.index("car")].any()
    rows, columns = np.nonzero(labels == REGIONS.index("near road"))
    assert rows.min() == 28
    assert rows.max() < 66
    assert len(columns)


def test_fractions_sum_to_one_and_know_their_region(drive):
    _, labels = drive[-1]
    even = fractions(np.ones(labels.shape), labels, REGIONS)
    assert sum(even.values()) == pytest.approx(1)
    assert even["status bar"] == pytest.approx(12 / 96)
    alone = fractions((labels == 2).astype(float), labels, REGIONS)
    assert alone == {name: float(name == "far road") for name in REGIONS}
    assert set(fractions(np.zeros(labels.shape), labels, REGIONS).values()) == {0.0}
