"""The HTML page is complete and holds the table's results."""

from __future__ import annotations

import html
import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest
from PIL import Image

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import EnvConfig
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.evaluation.metric import TableColumn
from nac_drive.experiments.evaluation_page import save_evaluation_page
from nac_drive.experiments.leaderboard import leaderboard
from nac_drive.experiments.page import Page, PageFigure, PageLink, conditions
from nac_drive.experiments.table import Table
from tests.browser import browser, needs_browser
from tests.nac_drive.experiments.test_leaderboard import ranked


class ReadPage(HTMLParser):
    """Texts of the table, and every address that the page loads or links to; checks that elements are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.addresses: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href") and value != "data:,"]
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
        if tag not in ("meta", "img", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"th", "td"} & set(self.open):
            self.rows[-1][-1] += data


def page_of(*figures: PageFigure, **changed: Any) -> Page:
    return Page("A & B", "<once> each", leaderboard(ranked()), figures, **changed)


def test_the_page_has_the_cells_of_the_table_and_needs_no_other_file(tmp_path):
    (tmp_path / "figure.png").write_bytes(b"\x89PNG")
    text = page_of(PageFigure("figure.png", "Figure", "one & two")).save_html(tmp_path).read_text()
    page, table = ReadPage(text), leaderboard(ranked())
    assert page.rows == [table.headings, *table.rows]
    assert page.addresses == ["data:image/png;base64,iVBORw=="]
    assert "<title>A &amp; B</title>" in text
    assert "<p>&lt;once&gt; each</p>" in text
    assert "<figcaption>one &amp; two</figcaption>" in text
    assert "mean ± standard deviation over episodes. Baseline: expert, on the same tracks." in text
    meanings = re.findall(r"<dt>(.*?)</dt><dd>(.+?)</dd>", text)
    assert [html.unescape(heading) for heading, _ in meanings] == table.headings


def test_a_video_is_played_from_its_file_beside_the_page(tmp_path):
    text = page_of(video=PageLink("a.mp4", "v"), commands="nac-drive").save_html(tmp_path).read_text()
    assert ReadPage(text).addresses == ["a.mp4", "a.mp4"]
    assert ">nac-drive</pre>" in text
    text = page_of(episode=PageLink("e.html", "e")).save_html(tmp_path).read_text()
    assert ReadPage(text).addresses == ["e.html"]


def test_markdown_says_the_same(tmp_path):
    (tmp_path / "figure.png").write_bytes(b"\x89PNG")
    content = page_of(
        PageFigure("figure.png", "Figure", "caption"), video=PageLink("a.mp4", "v*"), episode=PageLink("e.html", "e"),
        commands="one\ntwo",
    )  # fmt: skip
    text = content.save_markdown(tmp_path, "x.md").read_text()
    assert text.startswith("# A & B\n\n\\<once\\> each\n\n| driver |")
    assert leaderboard(ranked()).markdown() in text
    assert re.findall(r"\]\((.+?)\)", text) == ["figure.png", "a.mp4", "e.html"]
    assert "v\\*" in text
    assert text.endswith("    one\n    two\n")


def test_the_result_comes_first_and_is_said_once(tmp_path):
    """Then the table, then how it was measured, then figures. A verdict that is the headline is not repeated."""
    (tmp_path / "figure.png").write_bytes(b"\x89PNG")
    figure = PageFigure("figure.png", "Figure", "caption")
    page = page_of(figure, headline="One scores more.", verdicts=["One scores more.", "Another does not."])
    text = page.save_html(tmp_path).read_text()
    parts = ["One scores more.", "<table>", "Another does not.", "&lt;once&gt; each", "data:image/png"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.count("One scores more.") == 1


def test_names_stand_at_the_left_and_wide_parts_show_that_they_go_on(tmp_path):
    table = Table([TableColumn(name, str) for name in "abc"], [("x", "y", "1")], names=2)
    text = replace(page_of(commands="nac-drive"), table=table).save_html(tmp_path).read_text()
    assert re.findall(r'<td( class="name")?>(\w)</td>', text) == [(NAME, "x"), (NAME, "y"), ("", "1")]
    for inner in (
        '<div class="scroll" tabindex="0" role="region" aria-label="Results">\n<table>',
        '<pre class="scroll">',
    ):
        assert f'<div class="shade">{inner}' in text


NAME = ' class="name"'


@pytest.mark.slow
@needs_browser
def test_a_phone_shows_both_names_of_a_row_and_no_wider_page(tmp_path):
    long = "a_long_name_" * 9
    table = Table([TableColumn(name, str) for name in ("perturbation", "driver", *"abcdefgh")], [(long,) * 10], names=2)
    file = replace(page_of(headline=long, commands=long), title=long, table=table).save_html(tmp_path)
    with browser(tmp_path / "profile") as page:
        page.open(file.as_uri())
        page.screenshot(390, 844)
        assert page.run("document.documentElement.scrollWidth") == 390
        page.run("document.querySelector('.scroll').scrollLeft = 300")
        boxes = "[...document.querySelectorAll('td.name')].map(cell => cell.getBoundingClientRect())"
        first, second = page.run(f"{boxes}.map(({{ left, right }}) => [left, right])")
        assert 0 <= first[0] < first[1] - 3 <= second[0] < second[1] < 260
        assert page.errors == []


def test_a_video_shows_an_image_before_it_is_played(tmp_path):
    """The middle one. The first half of this video is dark."""
    frames = np.repeat(np.array([10] * 5 + [240] * 6, np.uint8), 64 * 96 * 3).reshape(11, 64, 96, 3)
    iio.imwrite(tmp_path / "a.mp4", frames, plugin="pyav", codec="libx264", fps=25)
    text = page_of(video=PageLink("a.mp4", "v")).save_html(tmp_path).read_text()
    poster = re.search('poster="data:image/webp;base64,(.+?)"', text)
    assert poster
    image = np.asarray(Image.open(BytesIO(b64decode(poster[1]))))
    assert image.shape == (64, 96, 3)
    assert image.mean() > 220


@pytest.mark.parametrize("baseline", [False, True])
def test_an_evaluation_reports_its_conditions(baseline, tmp_path):
    evaluations = [
        evaluate(Controller(), [5], name=name, env=EnvConfig(max_steps=3), perturbation="frame-rate:3")
        for name in ("expert", "me")[not baseline :]
    ]
    text = save_evaluation_page(tmp_path, evaluations, "5", "runs/me", "discrete").read_text()
    assert "<h1>Evaluation of me</h1>" in text
    assert "me drove once on every track (5)." in text
    assert "with the native reward; crashes are counted. Perturbation: frame-rate:3." in text
    assert ("expert drove the same tracks and was queried at every frame of me." in text) == baseline
    assert ReadPage(text).addresses[0].startswith("data:image/png;base64,")
    assert "nac-drive inspect --driver runs/me --track 5 --control discrete --perturb frame-rate:3 --out seen" in text


def test_conditions():
    assert "a crash ends the episode" in conditions("terminate")
    assert "restarts on the road" in conditions("intervene")
    assert "of at most 1000 frames" in conditions("ignore", max_steps=1000)
