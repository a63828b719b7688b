"""The style of figures: NAC keeps its colour, lines differ, and the settings of the caller's matplotlib stay."""

from __future__ import annotations

import itertools

import matplotlib
import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from nac_drive.policies import PRETRAINED
from nac_drive.policies.cores.registry import CORES
from nac_drive.storage.style import (
    HEAT_MAP,
    NAC,
    PALETTE,
    colour_of,
    family_of,
    ink_on,
    looks_of,
    stretch_returns,
    styled,
)

BLINDNESS = {  # Viénot, Brettel, Mollon 1999: linear RGB as it reaches people without red and without green cones
    "protan": np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]),
    "deutan": np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]),
    "none": np.eye(3),
}


def test_nac_has_one_colour_and_no_other_core_has_it():
    nac = {name for name in CORES if name.startswith("nac-")} | {
        "runs/nac",
        "NAC-PW",
        "champion",
        "robust-champion-continuous",
    }
    assert {colour_of(name) for name in nac} == {NAC}
    assert NAC not in {colour_of(name) for name in {*CORES} - nac} | {*PALETTE}
    shipped = {name for name in PRETRAINED if "champion" in name}
    assert {colour_of(name) for name in shipped} == {NAC}


def test_every_core_has_a_family_in_words():
    assert all(family_of(name) for name in CORES)
    words = {name: family_of(name) for name in ("nac-sharp", "transformer", "cfc", "lstm", "cnn", "runs/mine")}
    assert [*words.values()] == ["NAC", "attention", "continuous time", "recurrent", "no memory", ""]


@pytest.mark.parametrize("sight", BLINDNESS)
def test_colours_differ_for_every_sight(sight):
    seen = [(BLINDNESS[sight] @ np.array(to_rgb(colour)) ** 2.2).clip(0, 1) ** (1 / 2.2) for colour in (NAC, *PALETTE)]
    assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) > 0.12


@pytest.mark.parametrize("names", [[*CORES], [f"driver {i}" for i in range(40)]], ids=["cores", "unknown"])
def test_no_two_lines_look_the_same(names):
    looks = looks_of(names)
    assert list(looks) == names
    assert len({(look.color, str(look.linestyle)) for look in looks.values()}) == len(names)


def test_the_first_line_of_a_family_has_its_colour():
    looks = looks_of(["nac-exact", "lstm", "cfc", "cnn"])
    assert [look.color for look in looks.values()] == [colour_of(name) for name in looks]
    assert len({look.color for look in looks.values()}) == 4


def test_a_figure_has_the_style_and_the_settings_of_the_caller_stay():
    before = dict(matplotlib.rcParams)
    with styled():
        axis = Figure().subplots()
    assert not axis.spines["top"].get_visible()
    assert dict(matplotlib.rcParams) == before


def test_text_can_be_read_on_every_colour_of_a_heat_map():
    for colour in colormaps[HEAT_MAP](np.linspace(0, 1, 64)):
        luminance = (colour[:3] ** 2.2) @ (0.2126, 0.7152, 0.0722)
        ink = {"black": 0.0, "white": 1.0}[ink_on(colour)]
        assert (max(ink, luminance) + 0.05) / (min(ink, luminance) + 0.05) > 4.5  # WCAG 2, level AA


def test_returns_above_900_get_a_quarter_of_the_axis():
    axis = Figure().subplots()
    axis.plot([0, 1], [-100, 940])
    stretch_returns(axis, -100)
    low, middle, high = axis.transAxes.inverted().transform(axis.transData.transform([(0, -100), (0, 900), (0, 955)]))
    assert (low[1], high[1]) == (pytest.approx(0), pytest.approx(1))
    assert middle[1] < 0.76
    assert [*axis.get_yticks()] == [0, 400, 700, 800, 850, 900, 920, 940]
