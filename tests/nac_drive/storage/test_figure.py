"""Figures: text is drawn as it is, whatever the settings of matplotlib, and no figure costs the results."""

from __future__ import annotations

import ast
from pathlib import Path

import cv2
import matplotlib
import pytest
from matplotlib.figure import Figure

import nac_drive
from nac_drive.storage.figure import try_to_draw, write_figure
from nac_drive.storage.names import shown
from nac_drive.storage.write import WriteError
from tests.hostile_names import NAMES as FOREIGN

NAMES = tuple(map(shown, FOREIGN))


def draw(path: Path, names: tuple[str, ...] = NAMES) -> None:
    """A figure with names in every place."""
    figure = Figure()
    axis = figure.subplots()
    for name in names:
        axis.plot([1, 2], [1, 2], label=name)
    axis.set_xticks(range(len(names)), names)
    axis.set_title(names[0])
    axis.set_ylabel(names[0])
    axis.annotate(names[0], (1, 1))
    figure.suptitle(names[0])
    figure.legend()
    write_figure(path, figure)


@pytest.mark.parametrize("tex", [False, True])
def test_any_name_is_drawn(tex, full_figures, tmp_path, recwarn):
    with matplotlib.rc_context({"text.usetex": tex}):
        draw(tmp_path / "figure.png")
    image = cv2.imread(str(tmp_path / "figure.png"))
    assert image is not None
    assert image.shape == (720, 960, 3)
    assert not recwarn.list


def test_a_dollar_is_drawn_as_a_dollar(tmp_path):
    for name, names in (("plain", ("a", "b")), ("marked", ("$a$", "b"))):
        draw(tmp_path / name, names)
    assert (tmp_path / "plain").read_bytes() != (tmp_path / "marked").read_bytes()


@pytest.mark.parametrize(
    ("values", "expected"),
    [((0.004, 3), {"0.005", "0.01", "0.02", "1", "2"}), ((1e-8, 1e3), {"0.0001", "0.01", "1"}), ((3, 6), {"4", "5"})],
)
def test_powers_of_ten_are_written_in_full(values, expected, tmp_path):
    figure = Figure()
    axis = figure.subplots()
    axis.plot([1, 2], values)
    axis.set_yscale("log")
    write_figure(tmp_path / "figure.png", figure)
    labels = {label.get_text() for label in axis.get_yticklabels(which="both")}
    assert not any("$" in label for label in labels)
    assert expected <= labels


def test_a_figure_that_cannot_be_drawn_is_one_warning(tmp_path):
    path = tmp_path / "figure.png"

    def broken(path: Path) -> None:
        write_figure(path, Figure(figsize=(10_000, 10_000)))

    path.write_text("of before")
    with pytest.warns(UserWarning, match=r"figure.png could not be drawn: .*; the results are kept.") as caught:
        assert not try_to_draw(broken, path)
    assert "\n" not in str(caught[0].message)
    assert list(tmp_path.iterdir()) == []
    assert try_to_draw(draw, path)
    assert path.exists()


def test_a_figure_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(WriteError, match=r"cannot write .*figure\.png"):
        try_to_draw(draw, tmp_path / "missing" / "figure.png")


def test_a_link_in_place_of_a_figure_is_replaced(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "figure.png").symlink_to(tmp_path / "victim")
    draw(tmp_path / "figure.png")
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "figure.png").is_symlink()


PLACES = {"savefig": "storage/figure.py", "Environment": "analysis/page.py", "Console": "cli/main.py"}
"""Function -> the only file that calls it."""


def test_figures_pages_and_output_have_one_place_where_names_are_made_safe():
    """A second place would have to do it again."""
    package = Path(nac_drive.__file__).parent
    callers: dict[str, set[str]] = {call: set() for call in PLACES}
    for file in package.rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if any(call in text for call in PLACES) else ():
            if isinstance(node, ast.Call):
                for call in {getattr(node.func, "attr", ""), getattr(node.func, "id", "")} & PLACES.keys():
                    callers[call].add(file.relative_to(package).as_posix())
    assert all(callers[call] <= {place} for call, place in PLACES.items()), callers
