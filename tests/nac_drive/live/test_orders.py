"""Orders of a page that wait: later ones replace those that they make void, and bad ones are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nac_drive.live import messages
from nac_drive.live.orders import MOST_ORDERS, Orders


@dataclass
class Model:
    """A race as far as orders change it."""

    cars: list[dict[Any, Any]] = field(default_factory=lambda: [{"driver": "a"}, {"driver": "b"}])
    track: int = 0
    switches: dict[Any, Any] = field(default_factory=dict)
    frames: int = 0
    made: int = 0
    marked: int | None = None

    def do(self, order: messages.Message) -> None:
        match order:
            case messages.TakeStep():
                self.frames += 1
                self.switches["pause"] = True
            case messages.Pause(on=on):
                self.switches["pause"] = on
            case messages.Mark():
                self.marked = self.frames
            case messages.Again() if self.marked is not None:
                self.frames = self.marked
            case messages.Restart(track=track):
                self.marked = self.marked if track is None else None
                self.track = self.track if track is None else track
                self.frames = 0
            case messages.Perturb(name=name, level=level):
                self.switches[name] = level
            case messages.Add(driver=driver):
                self.cars.append({"driver": driver})
                self.frames, self.marked = 0, None
            case messages.Remove(car=car) if car < len(self.cars) > 1:
                del self.cars[car]
                self.marked = None
            case messages.SetDriver(car=car, driver=driver) if car < len(self.cars):
                self.cars[car] = {"driver": driver}
                self.frames, self.marked = 0, None
            case messages.Zero(car=car, group=group, index=index, on=on) if car < len(self.cars):
                self.cars[car][group, index] = on


CARS, NAMES = st.integers(0, 2), st.sampled_from(["a", "b"])
ORDERS = st.one_of(
    st.builds(messages.TakeStep),
    st.builds(messages.Mark),
    st.builds(messages.Again),
    st.builds(messages.Pause, st.booleans()),
    st.builds(messages.Restart, st.none() | st.integers(0, 3)),
    st.builds(messages.Perturb, NAMES, st.integers(0, 3)),
    st.builds(messages.Add, NAMES),
    st.builds(messages.Remove, CARS),
    st.builds(messages.SetDriver, CARS, NAMES),
    st.builds(messages.Zero, CARS, NAMES, st.integers(0, 1), st.booleans()),
)


@given(st.lists(ORDERS, max_size=40))
@example([messages.Mark(), messages.Restart(1), messages.Restart(0)])
def test_orders_that_are_merged_come_to_the_same(orders):
    one_by_one, merged, waiting = Model(), Model(), Orders()
    for order in orders:
        one_by_one.do(order)
        waiting.put(order)
    count = 0
    while waiting.first:
        merged.do(waiting.pop())
        count += 1
    assert merged == one_by_one
    assert count <= len(orders)


def test_too_many_orders_are_refused():
    waiting = Orders()
    for _ in range(MOST_ORDERS):
        waiting.put(messages.TakeStep())
    with pytest.raises(ValueError, match=f"{MOST_ORDERS} orders of this page wait; .* send it again"):
        waiting.put(messages.TakeStep())


@given(st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5) | st.just(1e308),
    lambda inner: st.lists(inner, max_size=3),
), st.sampled_from(["steer", "gas", "brake"]))  # fmt: skip
def test_controls_are_numbers_in_their_range(value, name):
    controls = {"steer": 0, "gas": 0, "brake": 0} | {name: value}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    low = -1 if name == "steer" else 0
    if number and low <= value <= 1:
        parsed = messages.parse(json.dumps({"type": "controls"} | controls))
        assert isinstance(parsed, messages.Controls)
        assert getattr(parsed, name) == value
    else:
        with pytest.raises(ValueError, match="not understood"):
            messages.parse(json.dumps({"type": "controls"} | controls))


@pytest.mark.parametrize("text", ['{"more":', '{"type":"zero","more":', "["])
def test_deep_nesting_is_refused_in_one_line(text):
    with pytest.raises(ValueError, match="not understood") as error:
        messages.parse(text + "[" * 4000)
    assert "\n" not in str(error.value)
