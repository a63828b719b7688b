"""The compiled simulator: layouts of its structs, and functions.

`carracing.h` is the contract. `ROAD` and `CAR` are its structs as numpy types.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from nac_drive.envs.native.build import source_digest

MAX_TILES, MAX_POLYGONS, MAX_TOUCHED, GRID, MAX_MEMBERS = 512, 1024, 31, 84, 16384
LOWEST_SCORE = -1000
"""The first number in the table of score images."""
RANDOM_NUMBERS = 24
"""Random numbers of one attempt to make a track."""
CRASHES = (None, "outside", "off_road", "heading")

_FOLDER = Path(__file__).parent


def _struct(*fields: tuple[Any, ...]) -> np.dtype:
    return np.dtype(list(fields), align=True)


_BODY = _struct(*((name, "f4") for name in ("x", "y", "angle", "vx", "vy", "spin", "sin", "cos")))
_JOINT = _struct(("impulse", "f4", 3), ("motor", "f4"), ("limit", "f4"), ("sleep", "f4"))
_WHEEL = _struct(
    *((name, "f8") for name in ("steer", "gas", "brake", "omega", "phase")),
    ("touched", "i4"), ("tiles", "u2", MAX_TOUCHED), ("skids", "u1"), ("on_road", "u1"),
)  # fmt: skip
_EVENTS = _struct(
    *((name, "i4") for name in (
        "off_road", "off_road_events", "crashes", "armed", "frames_off", "frames_on", "frames_turned",
    ))
)  # fmt: skip
_LAP = _struct(*((name, "i4") for name in ("index", "laps", "furthest", "finished")))
CAR = _struct(
    ("body", _BODY, 5), ("joint", _JOINT, 4), ("hull_sleep", "f4"), ("wheel", _WHEEL, 4),
    ("visited", "u1", MAX_TILES), ("painted", "u1", MAX_TILES),
    ("reward", "f8"), ("previous_reward", "f8"), ("shown_reward", "f8"), ("time", "f8"),
    ("visited_count", "i4"), ("new_lap", "i4"), ("frame", "i4"), ("interventions", "i4"),
    ("events", _EVENTS), ("lap", _LAP),
    ("index", "i4"), ("wheels_off_road", "i4"), ("crash", "i4"), ("outside", "i4"),
    ("speed", "f8"), ("lateral_offset", "f8"), ("heading_error", "f8"), ("position", "f4", 2),
)  # fmt: skip
ROAD = _struct(
    ("tiles", "i4"), ("polygons", "i4"), ("line", "f8", (MAX_TILES, 4)), ("polygon", "f8", (MAX_POLYGONS, 4, 2)),
    ("tile_of", "i2", MAX_POLYGONS), ("color", "u1", (MAX_POLYGONS, 3)),
    ("touched_color", "u1", 3), ("background", "u1", 3), ("grass", "u1", 3),
    ("grip", "f8"), ("lap_complete_percent", "f8"),
    ("corner", "f4", (MAX_TILES, 4, 2)), ("corners", "i4", MAX_TILES),
    ("cell", "i4", GRID * GRID + 1), ("member", "u2", MAX_MEMBERS),
)  # fmt: skip


def load(path: Path) -> ctypes.CDLL:
    """Load a library and declare its functions.

    Raises:
        OSError: If it cannot be loaded, or was built from other sources.
    """
    build = f"run `python {_FOLDER / 'build.py'}`" if source_digest() else "reinstall nac-drive"
    if not path.exists():
        raise OSError(f"there is no {path}; {build}")
    library = ctypes.CDLL(str(path))
    pointer, count = ctypes.c_void_p, ctypes.c_int
    signatures: dict[str, tuple[Any, ...]] = {
        "road_build": (count, pointer, pointer, pointer, ctypes.c_double),
        "car_begin": (None, pointer, pointer),
        "car_place": (None, pointer, pointer, ctypes.c_double, ctypes.c_double, ctypes.c_double),
        "cars_step": (None, pointer, pointer, count, pointer, count, count, pointer, pointer),
        "picture_scratch_size": (ctypes.c_long,),
        "frames_draw": (count, pointer, pointer, count, pointer, pointer, count, count, pointer, pointer),
        "seat_scratch_size": (ctypes.c_long, count, count),
        "seat_draw": (count, pointer, pointer, count, pointer, pointer, pointer),
        "source_digest": (ctypes.c_char_p,),
        "road_size": (ctypes.c_long,),
        "car_size": (ctypes.c_long,),
    }
    try:
        for name, (result, *arguments) in signatures.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise OSError(f"{path} is of another version of nac-drive: {error}; {build}") from None
    expected = source_digest()  # of the C files beside it; a wheel has none
    if expected and library.source_digest().decode() != expected:
        raise OSError(f"{path} was built from other sources; {build}")
    sizes = library.road_size(), library.car_size()
    if sizes != (ROAD.itemsize, CAR.itemsize):
        raise OSError(f"{path} has structs of {sizes} bytes, expected {(ROAD.itemsize, CAR.itemsize)}")
    return library


@cache
def score_images() -> np.ndarray:
    """Return the images (N, 12, 12, 3) of all scores.

    They show "-000", LOWEST_SCORE, LOWEST_SCORE + 1, ...
    """
    with np.load(_FOLDER / "scores.npz") as file:
        grey: np.ndarray = file["images"]  # (N, 12, 12)
    return np.repeat(grey[..., None], 3, axis=-1)
