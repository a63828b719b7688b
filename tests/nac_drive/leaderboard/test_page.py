"""The HTML page: complete in itself, and the same results as the table."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest

from nac_drive.data_collection.controller.controller import Controller
from nac_drive.envs import EnvConfig
from nac_drive.evaluation.evaluate import evaluate
from nac_drive.leaderboard.page import conditions, save_evaluation_report, save_report
from nac_drive.leaderboard.tables import cells
from tests.nac_drive.leaderboard.test_tables import entries


class Page(HTMLParser):
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


def test_the_page_has_the_cells_of_the_table_and_needs_no_other_file(tmp_path):
    (tmp_path / "figure.png").write_bytes(b"\x89PNG")
    path = save_report(tmp_path, entries(), title="A & B", protocol="<once> each")
    text = path.read_text()
    page = Page(text)
    headings, rows = cells(entries())
    assert page.rows == [headings, *rows]
    assert page.addresses == ["data:image/png;base64,iVBORw=="]
    assert "<title>A &amp; B</title>" in text
    assert "<p>&lt;once&gt; each</p>" in text
    assert "mean ± standard deviation over episodes. Baseline: expert, on the same tracks." in text
    meanings = re.findall(r"<dt>(.*?)</dt><dd>(.+?)</dd>", text)
    assert [html.unescape(heading) for heading, _ in meanings] == headings


def test_a_video_is_played_from_its_file_beside_the_page(tmp_path):
    path = save_report(tmp_path, entries(), title="t", protocol="p", figure=None, video="a.mp4", commands="nac-drive")
    assert Page(path.read_text()).addresses == ["a.mp4", "a.mp4"]
    assert "<pre>nac-drive</pre>" in path.read_text()
    path = save_report(tmp_path, entries(), title="t", protocol="p", figure=None, episode="e.html")
    assert Page(path.read_text()).addresses == ["e.html"]


@pytest.mark.parametrize("baseline", [False, True])
def test_an_evaluation_reports_its_conditions(baseline, tmp_path):
    evaluations = [
        evaluate(Controller(), [5], name=name, env=EnvConfig(max_steps=3), perturbation="frame-rate:3")
        for name in ("expert", "me")[not baseline :]
    ]
    text = save_evaluation_report(tmp_path, evaluations, "5", "runs/me", "discrete").read_text()
    assert "<h1>Evaluation of me</h1>" in text
    assert "me drove the tracks 5 once each." in text
    assert "with the native reward; crashes are counted. Perturbation: frame-rate:3." in text
    assert ("expert drove the same tracks and was queried at every frame of me." in text) == baseline
    assert Page(text).addresses[0].startswith("data:image/png;base64,")
    assert "nac-drive inspect --driver runs/me --track 5 --control discrete --perturb frame-rate:3 --out seen" in text


def test_conditions():
    assert "a crash ends the episode" in conditions("terminate")
    assert "restarts on the road" in conditions("intervene")
    assert "of at most 1000 frames" in conditions("ignore", max_steps=1000)
