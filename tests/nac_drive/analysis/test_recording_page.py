"""The pages and files of recorded episodes."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from base64 import b64decode
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nac_drive.analysis.inspect import inspect
from nac_drive.analysis.moments import moments
from nac_drive.analysis.page import assemble, save_episode_page
from nac_drive.analysis.recording import SALIENCY, Recording
from nac_drive.analysis.watch import watch
from nac_drive.envs import EnvConfig, make_env, rollout
from nac_drive.policies import save_driver
from nac_drive.storage.write import WriteError
from tests.browser import Page, browser, needs_browser
from tests.documented import ROOT
from tests.nac_drive.analysis.records import TRACK, Replayed, network, recorded


@pytest.fixture(scope="module")
def of_nac() -> Recording:
    return recorded(network("nac-exact"))[0]


@pytest.mark.parametrize(("view", "expected"), [(None, ""), ("both", "seat")])
def test_a_page_shows_the_other_view_where_it_is_asked_for(view, expected, tmp_path):
    driver = Replayed([np.zeros(3, np.float32)] * 6)
    driver.env_config = asdict(EnvConfig("continuous", max_steps=3))  # type: ignore[attr-defined]
    (recording,) = inspect(driver, TRACK, folder=tmp_path / "seen", view=view).recordings
    assert recording.other_view == expected
    watch(driver, TRACK, html=tmp_path / "watch.html", view=view)
    assert ('"view": "seat"' in (tmp_path / "watch.html").read_text()) == bool(expected)
    with pytest.raises(ValueError, match=r"view must be left out for a recording"):
        inspect(driver, folder=tmp_path / "again", view="both", dataset=tmp_path)


def test_a_file_for_rerun_has_every_array_with_a_row_a_decision(of_nac, tmp_path):
    pytest.importorskip("rerun")
    from nac_drive.analysis.rerun_file import save_rerun

    path = save_rerun(tmp_path / "x.rrd", [of_nac])
    assert [file.name for file in tmp_path.iterdir()] == ["x.rrd"]
    command = [sys.executable, "-m", "rerun", "rrd", "print", str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows: dict[str, int] = {}
    for count, name in re.findall(r"with (\d+) rows .* - /x/(\S+(?:\\ \S+)*) - data columns", printed):
        rows[name.replace("\\ ", " ")] = rows.get(name.replace("\\ ", " "), 0) + int(count)
    length = len(of_nac.frames)
    names = {"frame", "frame from seat", "track/car", "attention", *(f"series/{name}" for name in of_nac.series)}
    names |= {f"saliency/{name}" for name in of_nac.saliency} | {f"neurons/{name}" for name in of_nac.activity}
    assert rows == {"track/road": 1} | dict.fromkeys(names, length)


def test_a_file_for_rerun_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    """The same command works afterwards."""
    monkeypatch.setattr("nac_drive.analysis.inspect.optional_module", lambda *_: None)

    def fail(path: Path, _: Any) -> None:
        raise WriteError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr("nac_drive.analysis.inspect.save_rerun", fail)
    for _ in range(2):
        driver = Replayed([np.zeros(3, np.float32)] * 3)
        driver.env_config = asdict(EnvConfig("continuous", max_steps=2))  # type: ignore[attr-defined]
        with pytest.raises(WriteError):
            inspect(driver, TRACK, folder=tmp_path / "seen", rerun=tmp_path / "x.rrd")
        assert not list((tmp_path / "seen").iterdir())


def test_inspect_writes_page_and_arrays_and_replaces_nothing(tmp_path):
    save_driver(tmp_path / "mine", network("lstm"), env={"control": "continuous", "mask_bar": False, "max_steps": 5})
    steps: list[str] = []
    page = inspect(
        [tmp_path / "mine", "controller"], TRACK, folder=tmp_path / "out", control="continuous",
        perturbation="gaussian-noise:1+action-repeat:3", on_step=lambda name, step: steps.append(name),
    ).page  # fmt: skip
    assert {path.name for path in page.parent.iterdir()} == {"episode.html", "mine.npz", "controller.npz"}
    assert steps.count("mine") == 1
    assert "mine, controller on track 900001" in page.read_text()
    refused: tuple[tuple[Any, str], ...] = (
        ((["mine", "other/mine"],), "drivers must be one or more with different names, got mine, mine"),
        (([],), "got none"),
        (("controller", -1), "tracks must"),
    )
    for arguments, message in refused:
        with pytest.raises(ValueError, match=message):
            inspect(*arguments, folder=tmp_path / "new")
    page.unlink()
    with pytest.raises(FileExistsError, match=r"controller\.npz already exists; choose another folder"):
        inspect("controller", folder=tmp_path / "out")
    assert not (tmp_path / "new").exists()


def test_watch_writes_a_page(tmp_path):
    save_driver(tmp_path / "mine", network("lstm"), env={"control": "continuous", "mask_bar": False, "max_steps": 9})
    episode = watch(tmp_path / "mine", TRACK, html=tmp_path / "new" / "episode.html")
    plain = rollout(make_env(EnvConfig("continuous", max_steps=9)), network("lstm"), TRACK)
    assert (episode, episode.length) == (plain, 9)
    assert f"mine on track {TRACK}" in (tmp_path / "new" / "episode.html").read_text()
    with pytest.raises(FileExistsError, match=r"episode\.html already exists"):
        watch(tmp_path / "mine", TRACK, html=tmp_path / "new" / "episode.html")
    with pytest.raises(ValueError, match="pass one of them"):
        watch(tmp_path / "mine", TRACK, html=tmp_path / "x.html", video=tmp_path / "x.mp4")


@pytest.mark.slow
@needs_browser
def test_the_slider_moves_every_panel_in_a_browser(of_nac, tmp_path):
    lstm, _ = recorded(network("lstm"))
    file = save_episode_page(tmp_path / "page.html", [of_nac, lstm], "Title </script><b>")
    text = file.read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", text)  # nothing from elsewhere
    assert "fetch(" not in text
    with browser(tmp_path / "profile") as page:
        page.open(file.as_uri())
        page.wait("document.body.dataset.ready")
        plots = page.run("document.querySelectorAll('.plot .now').length")
        images, lines = page.run(PIXELS), page.run(LINES)
        page.run('(() => { const s = document.getElementById("slider"); s.value = 0.1; s.oninput(); })()')
        for after, before in ((page.run(PIXELS), images), (page.run(LINES), lines)):
            assert all(new != old for new, old in zip(after, before, strict=True))
        assert (len(images), len(lines)) == (6, plots)
        assert plots == 26
        last = of_nac.series["time"][-1]
        assert page.run('document.getElementById("time").textContent') == f"0.10 / {last:.2f} s"
        before = page.run(PIXELS)[0]
        page.run(
            "window.chosen = document.querySelectorAll('main select'); chosen[0].value = ''; chosen[0].onchange();"
        )
        assert page.run(PIXELS)[0] != before  # the overlay is gone
        page.run("chosen[1].value = 'output 3'; chosen[1].onchange();")
        step = int(np.flatnonzero(of_nac.series["time"] > 0.1 + 1e-6)[0]) - 1
        value = of_nac.activity["output"][step, 3]
        assert page.run('document.querySelector(".lap .note").textContent').startswith(f"output 3: {value:.3f} (")
        _a_click_on_a_plot_moves_the_clock(page, float(last))
        assert page.errors == []


PIXELS = '[...document.querySelectorAll("canvas.frame, canvas.track")].map(canvas => canvas.toDataURL())'


LINES = '[...document.querySelectorAll(".plot .now")].map(line => line.style.left)'


def _a_click_on_a_plot_moves_the_clock(page: Page, last: float) -> None:
    """To the middle, and the first neuron is chosen."""
    page.run(
        "(() => { const plot = document.querySelector('.plot.pick'), box = plot.querySelector('.u-over')"
        ".getBoundingClientRect(); plot.onclick({clientX: box.left + box.width / 2, clientY: box.top + 1}); })()"
    )
    assert page.run("chosen[1].value") == "features 0"
    shown = float(page.run('document.getElementById("time").textContent').split()[0])
    assert shown == pytest.approx((0.02 + last) / 2, abs=0.011)


def still(name: str, length: int, speed: float = 0.0) -> Recording:
    """A car that does not steer. Frame i has the grey value 20 i."""
    frames = np.full((length, 24, 32, 3), 20, np.uint8) * np.arange(length, dtype=np.uint8)[:, None, None, None]
    time, place = 0.02 * np.arange(1, length + 1), np.stack([np.arange(length), np.zeros(length)], axis=1)
    series = {name: np.zeros(length) for name in ("steer", "gas", "brake")}
    series |= {"time": time, "speed": speed + 1e-4 * np.sin(time), "return": np.full(length, -1e-5)}
    return Recording(name, TRACK, None, np.eye(2), frames, series, place)


def test_frames_have_as_many_images_as_they_need(monkeypatch, tmp_path):
    monkeypatch.setattr("nac_drive.analysis.page._SIDE", 64)
    text = save_episode_page(tmp_path / "page.html", [still("x", 7)], "x").read_text()
    images = [
        np.asarray(Image.open(BytesIO(b64decode(data)))) for data in re.findall('image/webp;base64,([^"]+)"', text)
    ]
    assert [image.shape for image in images] == [(48, 64, 3), (48, 64, 3)]
    tiles = [image[y : y + 24, x : x + 32].mean() for image in images for y in (0, 24) for x in (0, 32)]
    assert tiles == pytest.approx([20 * step for step in range(7)] + [0], abs=3)


@pytest.mark.slow
@needs_browser
def test_a_page_in_a_browser_is_read_and_steered(monkeypatch, tmp_path):
    """One of two drivers ends early; its name is long."""
    monkeypatch.setattr("nac_drive.analysis.page._SIDE", 64)
    recordings = [still("long_" * 20, 3), still("x", 7, speed=50.0)]
    file = save_episode_page(tmp_path / "page.html", recordings, "long_" * 20)
    with browser(tmp_path / "profile") as page:
        page.open(file.as_uri() + "#t=0.02")
        page.wait("document.body.dataset.ready")
        for width, height in ((390, 844), (1280, 800), (2560, 1300)):
            page.screenshot(width, height)
            assert page.run("document.documentElement.scrollWidth") <= width
        _images_have_names(page)
        _keys_move_the_clock_after_a_click(page)
        page.run('(() => { const s = document.getElementById("slider"); s.value = 0.14; s.oninput(); })()')
        pixel = "canvas.getContext('2d').getImageData(9, 9, 1, 1).data[0]"
        grey = page.run(f"[...document.querySelectorAll('canvas.frame')].map(canvas => {pixel})")
        assert grey == pytest.approx([40, 120], abs=3)  # the last frames, one in the second image
        titles = page.run("[...document.querySelectorAll('h2')].map(title => title.textContent)")
        assert [title.rpartition(": ")[2] for title in titles] == ["return 0; ended at 0.06 s", "return 0"]
        assert page.run("[...document.querySelectorAll('section.ended')].length") == 1
        texts = page.run("[...document.querySelectorAll('.legend')].map(legend => legend.textContent)")
        assert "-" not in "".join(texts)
        notes = page.run("[...document.querySelectorAll('.lap .note')].map(note => note.textContent)")
        assert notes == [f"speed: {speed}.000 (0.000 dark to 50.000 yellow)" for speed in (0, 50)]
        assert page.errors == []


def _images_have_names(page: Page) -> None:
    drawings = "[...document.querySelectorAll('canvas')].map(canvas => canvas.closest('[role=img]')?.ariaLabel)"
    plots = ["Actions; positive steer is to the right", "Speed", "Return"]
    assert page.run(drawings) == ["what the driver sees", "the track from above", *plots] * 2
    assert page.run("document.getElementById('slider').ariaValueText") == "0.02 s"


def _keys_move_the_clock_after_a_click(page: Page) -> None:
    page.click("#moments button")
    page.key("ArrowRight", True)
    assert page.run("document.getElementById('time').textContent").startswith("0.04")
    page.run("document.getElementById('play').focus()")
    page.key("ArrowRight", True)
    assert page.run("document.getElementById('time').textContent").startswith("0.06")


def test_the_plots_have_axes_of_a_library_that_is_as_published():
    """uPlot stands in the page with its licence. docs/dependencies.md names the published file."""
    folder = ROOT / "nac_drive/analysis/web"
    digest = hashlib.sha256((folder / "uPlot.iife.min.js").read_bytes()).hexdigest()
    assert digest in (ROOT / "docs/dependencies.md").read_text()
    page = assemble("nac_drive.analysis", "episode", title="x", recordings="{}")
    assert (folder / "uPlot.LICENSE.txt").read_text() in page
    assert "var uPlot=" in page
    assert "://" not in page
    labels = re.findall(r'unit: "([^"]+)"', page)
    assert labels == [
        "action", "units/s", "return", "fraction of map", "neuron", "frames ago", "1: uniform"
    ]  # fmt: skip
    assert 'across = "time, s"' in page


def test_the_page_of_the_package_is_complete(of_nac, tmp_path):
    text = save_episode_page(tmp_path / "page.html", [of_nac], "x").read_text()
    data = re.search(r'type="application/json">(.*?)</script>', text, re.S)
    assert data
    content = json.loads(data[1])
    (packed,) = content["episodes"]
    assert content["moments"] == [asdict(moment) for moment in moments([of_nac])]
    assert packed["neurons"]["output"]["shape"] == [24, 16]
    assert set(packed["saliency"]) == set(SALIENCY)
    assert Path(tmp_path / "page.html").stat().st_size < 2_000_000
