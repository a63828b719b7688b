"""JSON messages from a page to the arena."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta, Struct

MOST_CARS = 4
LARGEST_MESSAGE = 4096
"""Bytes."""
CarNumber = Annotated[int, Meta(ge=0, lt=MOST_CARS)]
Name = Annotated[str, Meta(max_length=200)]
Index = Annotated[int, Meta(ge=0, le=1_000_000)]
Shown = Literal["driver", "above", "seat", "both"]
"""What the frames of the cars show: what each driver sees, or the world in a view, or in both."""
SHOWN: tuple[Shown, ...] = get_args(Shown)
PedalPosition = Annotated[float, Meta(ge=0, le=1)]


class Message(Struct, forbid_unknown_fields=True, tag_field="type", tag=str.lower):
    """Base of all messages. `type` is the name of the class in lower case, or its `tag`."""


class Pause(Message):
    """Stop or go on."""

    on: bool


class TakeStep(Message, tag="step"):
    """Let one frame pass; the arena pauses."""


class Restart(Message):
    """Put all cars at the start of this or another track."""

    track: Annotated[int, Meta(ge=0, le=2**53)] | None = None


class Mark(Message):
    """Keep this moment; cars can drive again from it."""


class Again(Message):
    """Let all cars drive again from the marked moment."""


class Speed(Message):
    """Set how much faster than real time the clock runs."""

    value: Annotated[float, Meta(ge=0.05, le=10)]


class Add(Message):
    """Add a car; all cars start again."""

    driver: Name


class Remove(Message):
    """Take a car away."""

    car: CarNumber


class SetDriver(Message, tag="driver"):
    """Give a car another driver; all cars start again."""

    car: CarNumber
    driver: Name


class Perturb(Message):
    """Set the level of a perturbation for all cars.

    0 is none.
    """

    name: Name
    level: Annotated[int, Meta(ge=0, le=9)]


class Blind(Message):
    """Blind a car's camera, or let it see."""

    car: CarNumber
    on: bool


class Zero(Message):
    """Hold a neuron at 0, or let it go."""

    car: CarNumber
    group: Name
    index: Index
    on: bool


class Head(Message):
    """Turn a head of a car's attention off, or on."""

    car: CarNumber
    index: Index
    on: bool


class Uniform(Message):
    """Give all observations the same weight, or the learned ones."""

    car: CarNumber
    on: bool


class Clock(Message):
    """Give a driver the true time steps, or nominal ones."""

    car: CarNumber
    on: bool


class Saliency(Message):
    """Compute saliency maps, or not."""

    on: bool


class SetView(Message, tag="view"):
    """Show the world in a view, whatever the drivers see."""

    show: Shown


class Controls(Message):
    """Controls of the person at the wheel."""

    steer: Annotated[float, Meta(ge=-1, le=1)]
    gas: PedalPosition
    brake: PedalPosition


Any = (
    Pause | TakeStep | Restart | Mark | Again | Speed | Add | Remove | SetDriver | Perturb | Blind | Zero | Head
    | Uniform | Clock | Saliency | SetView | Controls
)  # fmt: skip
_DECODER = msgspec.json.Decoder(Any)


def parse(text: str | bytes) -> Message:
    """Return the message in a JSON text.

    Raises:
        ValueError: If it is too long, no JSON, of an unknown type, or a value is out of its range.
    """
    if len(text) > LARGEST_MESSAGE:
        raise ValueError(f"a message must have at most {LARGEST_MESSAGE} bytes, got {len(text)}.")
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"this message is not understood: {error}.") from None
