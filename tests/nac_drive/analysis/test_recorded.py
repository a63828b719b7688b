"""Recorded episodes are inspected and measured without a simulator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nac_drive as nd
from nac_drive.analysis.recording import Recording, commands
from nac_drive.data_collection.dataset.recorded_episode import RecordedEpisode
from nac_drive.storage.write import WriteError
from nac_drive.training.offline import offline_accuracy
from tests.commands import call, refused
from tests.data_collection.recordings import collect_small
from tests.data_collection.tubs import write_tub

pytestmark = pytest.mark.usefixtures("quick_exports")


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A tub, its dataset, a run, a dataset of CarRacing.

    Not to be changed.
    """
    folder = tmp_path_factory.mktemp("world")
    write_tub(folder / "tub", frames=90, sessions=3)
    road = nd.import_tub(folder / "tub", folder / "road")
    config = nd.TrainConfig(
        nd.DriverConfig("nac-exact", {"num_heads": 2, "window": 4}, d_model=16, dense=16),
        nd.DataConfig(sequence_length=16, batch_size=4), epochs=1,
    )  # fmt: skip
    nd.train(config, road, folder / "run")
    collect_small(folder / "cars")
    return folder


def test_a_recording_goes_on_whatever_a_driver_does(world):
    episode = RecordedEpisode.read(nd.Demonstrations.open(world / "cars"), 1)
    road, arrays = episode.road(nd.resolve_driver("champion")), episode.arrays
    rng = np.random.default_rng(0)
    frame, info = road.reset()
    for step in range(len(arrays.frames)):
        np.testing.assert_array_equal(frame, arrays.frames[step])
        assert (info["dt"], info["speed"]) == (arrays.dt[step], arrays.telemetry["speed"][step])
        frame, reward, terminated, truncated, info = road.step(rng.integers(5))
        assert (reward, terminated, truncated) == (arrays.reward[step], step == len(arrays.frames) - 1, False)
    assert arrays.last_frame is not None
    np.testing.assert_array_equal(frame, arrays.last_frame)


def test_a_driver_of_a_tub_is_inspected(world, tmp_path):
    out = tmp_path / "seen"
    assert call(
        "inspect", "--dataset", str(world / "road"), "--episode", "2", "--driver", str(world / "run"), "--out", str(out)
    ) == 0  # fmt: skip
    recording = np.load(out / "run.npz")
    dataset = nd.Demonstrations.open(world / "road")
    frames = dataset.load([2])
    np.testing.assert_array_equal(recording["frames"], frames.frames[:])
    for part, name in enumerate(("steer", "gas", "brake")):
        np.testing.assert_array_equal(recording[f"series/recorded {name}"], frames.labels[:, part])
    assert {"saliency/VisualBackProp", "saliency/Grad-CAM", "attention"} <= set(recording.files)
    assert len([name for name in recording.files if name.startswith("activity/")]) > 1
    assert recording["saliency/input gradient"].shape == frames.frames.shape[:3]
    assert not [name for name in recording.files if " on " in name or name == "series/return"]
    page = (out / "episode.html").read_text()
    assert "run on episode 2 of road" in page
    assert "largest difference from the recording" in page


def test_what_is_inspected_is_what_the_driver_would_do_in_the_simulator(world, tmp_path):
    """The same frames give the same actions, neurons and saliency."""
    champion = nd.load_driver("champion")
    driver = nd.save_driver(tmp_path / "champion", champion, env={**champion.env_config, "max_steps": 40})
    dataset = nd.collect(tmp_path / "data", driver, env=nd.EnvConfig(max_steps=40), seeds=[5], workers=1)
    seen = nd.inspect(driver, folder=tmp_path / "recorded", dataset=dataset).recordings[0]
    np.testing.assert_array_equal(seen.series["steer"], seen.series["recorded steer"])
    live = nd.inspect(driver, 5, folder=tmp_path / "live").recordings[0]
    for group in ("activity", "saliency"):
        for name, values in getattr(seen, group).items():
            np.testing.assert_array_equal(values, getattr(live, group)[name], err_msg=name)
    assert "return" in seen.series
    assert seen.title == "champion, episode 0 of data: steer differs by 0.000 on average"


def test_offline_metrics_are_those_of_the_training(world):
    dataset = nd.Demonstrations.open(world / "road")
    driver = nd.load_driver(world / "run")
    (result,) = nd.evaluate_recorded(world / "run", dataset)
    _, kept_out = dataset.split(0.1)
    expected = offline_accuracy(driver, dataset.load(kept_out), dataset.meta.env)
    assert result.accuracy.steering_mae == pytest.approx(expected.steering_mae, rel=1e-5)
    assert result.accuracy.accuracy == pytest.approx(expected.accuracy)
    rows = [json.loads(line) for line in (world / "run" / "metrics.jsonl").read_text().splitlines()]
    assert result.accuracy.steering_mse == pytest.approx(rows[-1]["validation"]["steering_mse"], rel=1e-4)
    (every,) = nd.evaluate_recorded(world / "run", dataset, episodes="all")
    assert list(every.episodes) == [0, 1, 2]
    weights = [row["length"] for row in dataset.rows]
    errors = [accuracy.steering_mae or 0.0 for accuracy in every.episodes.values()]
    assert every.accuracy.steering_mae == pytest.approx(np.average(errors, weights=weights))


def test_validation_is_what_no_driver_learned_from(world, tmp_path):
    """With a smaller fraction in training, or none."""
    dataset = nd.Demonstrations.open(world / "road")
    learned = {}
    for fraction in (0.5, 0.0):
        driver = nd.load_driver(world / "run")
        driver.meta["training"] = {**driver.meta["training"], "validation_fraction": fraction}
        learned[fraction] = nd.save_driver(tmp_path / str(fraction), driver)
    default, by_two = ([*nd.evaluate_recorded(driver, dataset)[0].episodes] for driver in (world / "run", learned[0.5]))
    assert default == by_two == [dataset.seeds.index(track) for track in dataset.split(0.1)[1]]
    with pytest.raises(ValueError, match=r"episodes: a driver learned from all tracks of .*road; pass all"):
        nd.evaluate_recorded([world / "run", learned[0.0]], dataset)
    driver = nd.load_driver(learned[0.0])
    driver.meta["training"]["dataset_sha256"] = "another"
    counts = r"learned from another dataset. If that has episodes of .*road, they count"
    with pytest.warns(UserWarning, match=counts) as caught:
        assert [*nd.evaluate_recorded(driver, dataset)[0].episodes] == default
    assert caught[0].filename == __file__, "the line of the user"


@pytest.mark.parametrize("episodes", [np.arange(2), [np.int64(0), 1], "0,1"])
def test_numbers_of_episodes_are_numbers_of_python_or_numpy(world, episodes):
    (result,) = nd.evaluate_recorded(world / "run", world / "road", episodes=episodes)
    assert [*result.episodes] == [0, 1]


@pytest.mark.parametrize("episodes", [[1.9], [True], np.array([0.0]), [], 1])
def test_other_numbers_of_episodes_are_refused(world, episodes):
    with pytest.raises(ValueError, match="episodes must be validation, all, or different numbers"):
        nd.evaluate_recorded(world / "run", world / "road", episodes=episodes)


@pytest.mark.parametrize("episode", [True, 1.0, "1"])
def test_an_inspected_episode_has_a_whole_number(world, tmp_path, episode):
    with pytest.raises(ValueError, match="episode must be a whole number"):
        nd.inspect(world / "run", folder=tmp_path / "seen", dataset=world / "road", episode=episode)


def test_a_folder_that_cannot_be_made_is_named_before_anything_is_driven(world, tmp_path):
    events: list[object] = []
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match="cannot write"):
        nd.evaluate_recorded(world / "run", world / "road", folder=tmp_path / "file" / "out", progress=events.append)
    assert not events


def test_frames_of_the_zoom_and_without_a_label_are_no_difference(world):
    """The title of an inspection counts what offline metrics count."""
    episode = RecordedEpisode.read(nd.Demonstrations.open(world / "cars"), 0)
    label = np.full_like(episode.arrays.label, 1)
    labelled = np.arange(len(label)) % 2 == 0
    episode = replace(episode, arrays=replace(episode.arrays, label=label), labelled=labelled)
    actions = np.where(episode.counted, commands(1, episode.env.spec)["steer"], 0).astype(np.float32)
    seen = Recording("a", 1, None, np.zeros((0, 2)), episode.arrays.frames, {}, np.zeros((0, 2)))
    seen.series = {name: actions.copy() for name in ("steer", "gas", "brake", "return")}
    seen.add_recorded("episode 0", episode)
    assert episode.counted.any()
    assert seen.title == "a, episode 0: steer differs by 0.000 on average"
    seen.add_recorded("episode 0", replace(episode, labelled=np.zeros(len(label), bool)))
    assert seen.title == "a, episode 0: no frame has an expert's label"


def test_a_driver_of_another_control_is_told_what_a_recording_can_have(world, tmp_path, capsys):
    words = ("--dataset", str(world / "cars"), "--driver", "champion-continuous")
    for command in (("evaluate", *words), ("inspect", *words, "--out", str(tmp_path / "seen"))):
        said = refused(capsys, *command)
        assert "pass a driver of discrete control, or a dataset of continuous control" in said


@pytest.mark.slow
def test_an_exported_driver_is_measured_alike(world, tmp_path, capsys):
    driver = nd.load_driver(world / "run")
    driver.meta["training"] = {**driver.meta["training"], "validation_fraction": 0.0}
    nd.export(driver, tmp_path / "run.onnx")
    with pytest.raises(ValueError, match=r"a driver learned from all tracks of .*road"):
        nd.evaluate_recorded(tmp_path / "run.onnx", world / "road")
    out = tmp_path / "offline"
    assert call(
        "evaluate", "--dataset", str(world / "road"), "--driver", str(tmp_path / "run.onnx"), "--baseline",
        str(world / "run"), "--episodes", "1,2", "--out", str(out),
    ) == 0  # fmt: skip
    assert "steering error" in capsys.readouterr().out
    one, other = json.loads((out / "offline.json").read_text())["drivers"]
    assert (one["driver"], other["driver"]) == ("run.onnx", "run")
    assert list(one["episodes"]) == ["1", "2"]
    assert one["steering_mae"] == pytest.approx(other["steering_mae"], rel=1e-4)


def test_discrete_actions_count_where_a_person_labelled_them(world):
    (result,) = nd.evaluate_recorded("champion", world / "cars", episodes=[0, 2])
    dataset = nd.Demonstrations.open(world / "cars")
    expected = offline_accuracy(nd.load_driver("champion"), dataset.load([11, 7]), dataset.meta.env)
    assert result.accuracy == expected
    frames = dataset.load([11, 7])
    assert result.frames == int((~frames.zooming).sum())


def test_recorded_frames_are_lost_where_the_protocol_places_its_gaps(world, tmp_path):
    """In the middle of an episode (PDNA, section 4). The labels stay."""
    driver, dataset = nd.load_driver(world / "run"), nd.Demonstrations.open(world / "road")

    def error(perturbation: str) -> float:
        out = tmp_path / perturbation
        settings: Any = {"episodes": "all", "perturbation": perturbation, "folder": out}
        (result,) = nd.evaluate_recorded(world / "run", dataset, **settings)
        assert json.loads((out / "offline.json").read_text())["perturbation"] == perturbation
        assert result.accuracy.steering_mae is not None
        return result.accuracy.steering_mae

    frames = dataset.load([row["seed"] for row in dataset.rows])
    clean = offline_accuracy(driver, frames, dataset.meta.env).steering_mae
    assert error("gap:0") == pytest.approx(clean, rel=1e-5)
    for first, end in zip(frames.offsets[:-1], frames.offsets[1:], strict=True):
        lost = round(0.3 * (end - first))
        begin = first + (end - first - lost) // 2
        frames.frames[begin : begin + lost] = 0
    black = offline_accuracy(driver, frames, dataset.meta.env).steering_mae
    assert error("gap:3") == pytest.approx(black, rel=1e-5)
    assert black != pytest.approx(clean, rel=1e-4)


def test_the_default_baseline_sees_frames_from_above_alone(world, tmp_path, capsys):
    collect_small(tmp_path / "seat", env=nd.EnvConfig("continuous", view="seat", max_steps=60), seeds=[5], noise=None)
    words = ("evaluate", "--dataset", str(tmp_path / "seat"), "--episodes", "all", "--driver")
    assert call(*words, "champion-seat") == 0
    printed = capsys.readouterr().out
    assert "champion-seat" in printed
    assert "no baseline: expert was trained on other frames." in printed
    assert "driver 'champion-continuous' was trained in the view 'above'" in refused(
        capsys, *words, "champion-continuous"
    )


def test_a_recording_of_one_session_says_how_to_keep_some_of_it_out(world, tmp_path, capsys):
    write_tub(tmp_path / "tub", frames=40, sessions=1)
    one = nd.import_tub(tmp_path / "tub", tmp_path / "one")
    said = refused(capsys, "train", str(one.path), "--out", str(tmp_path / "run"), "--core", "cnn")
    assert "needs at least two tracks" in said
    assert "import it again with a smaller episode_frames (--episode-frames)" in said
    said = refused(capsys, "evaluate", "--dataset", str(one.path), "--driver", str(world / "run"))
    assert "has one track, and none was kept out; pass all (--episodes all)" in said
    assert call("evaluate", "--dataset", str(one.path), "--driver", str(world / "run"), "--episodes", "all") == 0
    assert len(nd.import_tub(tmp_path / "tub", tmp_path / "two", episode_frames=20).split(0.1)[1]) == 1
    assert "evaluate --dataset FOLDER" in refused(capsys, "evaluate", "--driver", str(world / "run"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "--dataset", "road", "--episode", "9", "--driver", "run", "--out", "x"), "which has 0 to 2"),
        (("inspect", "--dataset", "road", "--driver", "champion", "--out", "x"), "mean nothing to it"),
        (("inspect", "--dataset", "cars", "--driver", "controller", "--out", "x"), "need the simulator"),
        (("inspect", "--dataset", "road", "--driver", "run", "--track", "3", "--out", "x"), "track must be left out"),
        (("inspect", "--dataset", "cars", "--perturb", "gap:1", "--out", "x"), "perturbation must be left out"),
        (("evaluate", "--dataset", "road", "--driver", "run", "--tracks", "test-5"), "tracks must be left out"),
        (("evaluate", "--dataset", "road", "--driver", "run", "--episodes", "1,1"), "different numbers"),
        (("evaluate", "--dataset", "cars", "--perturb", "gap:1:skip"), "'gap', which skips them; write gap:1:zero"),
        (("evaluate", "--dataset", "cars", "--perturb", "action-delay:1"), "'action-delay', which acts on the car"),
        (("evaluate", "--dataset", "road", "--driver", "champion-continuous"), "in the environment 'car-racing'"),
        (("compare", "road", "--out", "x"), "is not simulated here, and a comparison drives"),
    ],
)  # fmt: skip
def test_refusals(world, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(world)
    assert message in refused(capsys, *arguments)
    assert not Path("x").exists()
