"""The drawing shows the wiring: as many lines as synapses, as many discs as neurons, grey where nothing runs."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from nac_drive.analysis.wiring_figure import COLUMNS, DISABLED, draw_wiring
from nac_drive.policies.wiring.graphs import (
    backbone_wiring,
    fully_connected_wiring,
    ncp_wiring,
    random_wiring,
    sensory_gate_wiring,
)
from nac_drive.policies.wiring.wiring import GROUPS, Groups, Wiring

WIRINGS = {
    "phi_activation": sensory_gate_wiring(64, 64, 0.5, 0),
    "backbone": backbone_wiring(16, 64, 0.5, 0),
    "eight neurons": ncp_wiring(3, Groups(0, 2, 4, 2, input_group="inter"), sparsity=0.5, seed=0),
    "one neuron": fully_connected_wiring(1, Groups(1, output_group="sensory")),
    "long arcs at the edge": fully_connected_wiring(2, Groups(1, 1, 1, 23)),
    "every pair": random_wiring(4, Groups(3, 4, 5, 2), sparsity=0.5, seed=0),
}

each_wiring = pytest.mark.parametrize("wiring", WIRINGS.values(), ids=WIRINGS)


def shown(figure: Figure, kind: str) -> dict[str, list]:
    """The paths of each collection of a kind, by the rest of its gid."""
    paths: dict[str, list] = {}
    for artist in figure.axes[0].collections:
        head, _, rest = str(artist.get_gid()).partition(":")
        if head == kind:
            paths[rest] = list(artist.get_paths())
    return paths


def centres(paths: list) -> np.ndarray:
    """(n, 2): the middles of discs."""
    return np.array([0.5 * (path.vertices.min(axis=0) + path.vertices.max(axis=0)) for path in paths])


@each_wiring
def test_every_synapse_is_one_line_between_its_two_neurons(wiring: Wiring) -> None:
    figure = draw_wiring(wiring)
    neurons = {name: centres(paths) for name, paths in shown(figure, "neurons").items()}
    synapses = shown(figure, "synapses")
    total = int(wiring.input_mask.sum() + wiring.recurrent_mask.sum())
    assert sum(len(lines) for lines in synapses.values()) == total
    for name, lines in synapses.items():
        source, target = name.split(":")
        rows = wiring.input_mask if source == "inputs" else wiring.recurrent_mask[wiring.group(source)]
        expected = np.argwhere(rows[:, wiring.group(target)])
        found = np.array([(line.vertices[0], line.vertices[-1]) for line in lines])  # (n, 2, 2)
        starts, ends = neurons[source][expected[:, 0]], neurons[target][expected[:, 1]]
        np.testing.assert_allclose(found, np.stack([starts, ends], axis=1), atol=1e-9)


@each_wiring
def test_every_neuron_is_one_disc_and_no_two_touch(wiring: Wiring) -> None:
    discs = shown(draw_wiring(wiring), "neurons")
    assert {name: len(paths) for name, paths in discs.items()} == {
        "inputs": wiring.inputs,
        **{name: len(np.arange(wiring.units)[wiring.group(name)]) for name in GROUPS},
    }
    places = np.concatenate([centres(paths) for paths in discs.values() if paths])
    distance = np.linalg.norm(places[:, None] - places, axis=2) + 9.0 * np.eye(len(places))
    radius = max(np.ptp(path.vertices[:, 0]) for paths in discs.values() for path in paths) / 2.0
    assert distance.min() > 2.0 * radius


@each_wiring
def test_disabled_groups_and_only_they_are_grey_and_say_so(wiring: Wiring) -> None:
    figure = draw_wiring(wiring)
    disabled = set(GROUPS) - set(wiring.active_groups)
    titles = {text.get_text().split("\n")[0]: text.get_text() for text in figure.axes[0].texts}
    assert {name for name in COLUMNS if "(disabled)" in titles[name]} == disabled
    for artist in figure.axes[0].collections:
        kind, _, name = str(artist.get_gid()).partition(":")
        if kind == "neurons" and artist.get_paths():
            assert (to_rgb(artist.get_facecolor()[0]) == to_rgb(DISABLED)) == (name in disabled)  # type: ignore[index]


@each_wiring
def test_column_titles_count_the_neurons(wiring: Wiring) -> None:
    titles = [text.get_text().split("\n") for text in draw_wiring(wiring).axes[0].texts]
    counts = {lines[0]: int(lines[1]) for lines in titles if lines[0] in COLUMNS}
    assert counts.pop("inputs") == wiring.inputs
    assert sum(counts.values()) == wiring.units


@each_wiring
def test_nothing_is_cut_off(wiring: Wiring) -> None:
    figure = draw_wiring(wiring, "a title")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    page, axes = figure.bbox, figure.axes[0]
    boxes = [text.get_window_extent(renderer) for text in (*axes.texts, *figure.texts)]
    boxes += [
        path.get_extents(axes.transData)
        for kind in ("neurons", "synapses")
        for p in shown(figure, kind).values()
        for path in p
    ]
    assert page.x0 <= min(box.x0 for box in boxes)
    assert page.y0 <= min(box.y0 for box in boxes)
    assert page.x1 >= max(box.x1 for box in boxes)
    assert page.y1 >= max(box.y1 for box in boxes)


def test_a_figure_needs_no_pyplot() -> None:
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    draw_wiring(WIRINGS["eight neurons"]).savefig("/dev/null", format="png")
    assert plt.get_fignums() == before


@pytest.mark.parametrize("title", [r"$\foo$", "a$_$b"])
def test_any_title_is_drawn(title):
    figure = draw_wiring(WIRINGS["one neuron"], title)
    FigureCanvasAgg(figure).draw()
