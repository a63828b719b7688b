"""The controls of the arena's page, without a browser."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html.parser import HTMLParser

from nac_drive.analysis.page import assemble
from nac_drive.envs import PERTURBATIONS, Perturbation
from nac_drive.live.sliders import WORDS, slider_groups


class Controls(HTMLParser):
    """Buttons, sliders and sentences in their order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.buttons: list[dict[str, str | None]] = []
        self.sliders: list[dict[str, str | None]] = []
        self.sentences: list[str] = []
        self.legends: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._open = tag
        if tag == "button":
            self.buttons.append(dict(attrs))
        if tag == "input" and ("type", "range") in attrs:
            self.sliders.append(dict(attrs))

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open == "small":
            self.sentences.append(data)
        if self._open == "legend":
            self.legends.append(data)


def page() -> str:
    return assemble("nac_drive.live", "arena", groups=slider_groups())


def test_every_perturbation_has_a_slider_with_units_and_a_sentence():
    controls = Controls(page())
    groups = slider_groups()
    sliders = [slider for group in groups.values() for slider in group]
    assert {slider.name for slider in sliders} == PERTURBATIONS.keys() == WORDS.keys()
    assert [given["id"] for given in controls.sliders] == [f"level-{slider.name}" for slider in sliders]
    assert controls.sentences == [slider.meaning for slider in sliders]
    assert controls.legends[-3:] == [*groups]
    for given, slider in zip(controls.sliders, sliders, strict=True):
        assert given["max"] == str(len(PERTURBATIONS[slider.name]))
        assert (given["data-levels"] or "").split("|") == [*slider.levels]
        assert len(set(slider.levels)) == len(slider.levels)  # the text says what the level changes
        assert all(re.search(r"\d", level) for level in slider.levels)
        assert re.fullmatch(r"[A-Z][^.]+\.", slider.meaning)


def test_units_are_those_of_the_settings():
    levels = {slider.name: slider.levels for group in slider_groups().values() for slider in group}
    assert levels["frame-drop"] == ("10 % of the frames", "30 % of the frames", "50 % of the frames")
    assert levels["action-delay"] == ("20 ms", "40 ms", "60 ms", "80 ms")
    assert levels["action-repeat"] == ("25 times a second", "12.5 times a second", "6.25 times a second")
    assert levels["frame-rate"][-1] == "every 1 to 5 frames"


def test_a_perturbation_of_somebody_else_has_a_slider_too(monkeypatch):
    @dataclass(frozen=True)
    class Fog(Perturbation):
        """White fog hides what is far. It moves."""

        metres: float

        def wrap(self, env, stream, episode_frames, bar_top):
            return env

    monkeypatch.setitem(PERTURBATIONS, "fog", (Fog(90.0), Fog(30.0)))
    (fog,) = (slider for group in slider_groups().values() for slider in group if slider.name == "fog")
    assert (fog.meaning, fog.levels) == ("White fog hides what is far.", ("metres 90.0", "metres 30.0"))


def test_the_page_has_one_primary_control_and_help_and_asks_no_network():
    text = page()
    controls = Controls(text)
    assert [button.get("id") for button in controls.buttons if button.get("class") == "primary"] == ["pause"]
    assert controls.buttons[0]["id"] == "pause"
    assert [button.get("popovertarget") for button in controls.buttons if "popovertarget" in button] == ["help"] * 2
    assert {button["data-key"] for button in controls.buttons if "data-key" in button} == {
        "ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"
    }  # fmt: skip
    assert "://" not in text.replace("://${location.host}", "")
