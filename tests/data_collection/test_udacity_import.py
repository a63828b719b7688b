"""Logs of the Udacity simulator as people have them: read as they are meant, or refused with the cure."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from itertools import islice, permutations
from pathlib import Path

import cv2
import numpy as np
import pytest

import nac_drive as nd
from nac_drive.data_collection.dataset.limits import DatasetError
from nac_drive.envs import udacity_frame
from nac_drive.events import Event
from tests.commands import call, refused
from tests.data_collection.recordings import contents
from tests.envs.test_udacity_images import huge_png

NAMES = ("center", "left", "right", "steering", "throttle", "brake", "speed")
HEADER = ",".join(NAMES)
FRAMES = 6
"""Lines of a recording, at ten images a second."""


def image_name(camera: str, tenths: int) -> str:
    return f"{camera}_2026_11_23_10_{tenths // 600:02d}_{tenths // 10 % 60:02d}_{100 * (tenths % 10):03d}.png"


def fields(index: int, tenths: int | None = None, **changed: str) -> dict[str, str]:
    """The fields of a line, by name."""
    images = {camera: f"/home/me/IMG/{image_name(camera, index if tenths is None else tenths)}" for camera in NAMES[:3]}
    return {**images, "steering": f"{index / 10}", "throttle": "0.5", "brake": "0", "speed": "9.3", **changed}


def text(lines: list[dict[str, str]], header: bool = True, names: tuple[str, ...] = NAMES) -> str:
    rows = [",".join(names)] * header + [",".join(line[name] for name in names) for line in lines]
    return "\n".join(rows) + "\n"


PLAIN = [fields(index) for index in range(FRAMES)]


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """A folder IMG with 40 images of each camera. Not to be changed."""
    folder = tmp_path_factory.mktemp("images") / "IMG"
    folder.mkdir()
    for number, camera in enumerate(NAMES[:3]):
        for tenths in range(40):
            cv2.imwrite(
                str(folder / image_name(camera, tenths)), np.full((160, 320, 3), 40 * number + tenths, np.uint8)
            )
    return folder


@pytest.fixture
def log(images, tmp_path) -> Path:
    """An empty log beside the images."""
    shutil.copytree(images, tmp_path / "IMG", copy_function=os.link)
    (tmp_path / "driving_log.csv").touch()
    return tmp_path / "driving_log.csv"


def imported(log: Path, content: str | bytes, **options: object) -> nd.Demonstrations:
    log.write_bytes(content if isinstance(content, bytes) else content.encode())
    return nd.import_udacity(log, log.parent / "data", **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def expected(images, tmp_path_factory) -> dict[str, object]:
    """The files of the dataset of PLAIN."""
    folder = tmp_path_factory.mktemp("expected")
    shutil.copytree(images, folder / "IMG", copy_function=os.link)
    return contents(imported(folder / "driving_log.csv", text(PLAIN)).path)


# What is read


def test_columns_are_found_by_their_names(log, expected):
    for number, order in enumerate(islice(permutations(NAMES), 0, 5040, 1300)):
        log.write_text(text(PLAIN, names=order))
        dataset = nd.import_udacity(log, log.parent / f"data-{number}")
        assert contents(dataset.path) == expected, order


SAME: dict[str, Callable[[], bytes]] = {
    "no header": lambda: text(PLAIN, header=False).encode(),
    "a byte order mark": lambda: b"\xef\xbb\xbf" + text(PLAIN).encode(),
    "a byte order mark, no header": lambda: b"\xef\xbb\xbf" + text(PLAIN, header=False).encode(),
    "ends of lines of Windows": lambda: text(PLAIN).replace("\n", "\r\n").encode(),
    "no end of the last line": lambda: text(PLAIN).rstrip("\n").encode(),
    "empty lines": lambda: text(PLAIN).replace("\n", "\n\n").encode(),
    "spaces": lambda: text(PLAIN).replace(",", " , ").encode(),
    "quotes": lambda: text(PLAIN).replace(",", '", "').replace("\n", '"\n"').join('""').removesuffix('""').encode(),
    "paths of Windows": lambda: text(PLAIN).replace("/home/me/IMG/", "C:\\a b\\IMG\\").encode(),
    "shuffled": lambda: text(random.Random(0).sample(PLAIN, FRAMES)).encode(),
    "every line twice": lambda: text([line for line in PLAIN for _ in range(2)]).encode(),
    "twice, and other folders": lambda: (text(PLAIN) + text(PLAIN).replace("/home/me/", "")).encode(),
}


@pytest.mark.parametrize("kind", SAME)
def test_a_log_is_read_as_it_is_meant(log, expected, kind):
    assert contents(imported(log, SAME[kind]()).path) == expected


def test_throttle_below_zero_is_brake(log):
    pedals = [("-0.6", "0"), ("-0.2", "0.5"), ("-0.5", "0.2"), ("1", "0.1"), ("0", "0"), ("-0", "-0")]
    lines = [fields(i, throttle=throttle, brake=brake) for i, (throttle, brake) in enumerate(pedals)]
    labels = imported(log, text(lines), steering_offset=0).load().labels
    np.testing.assert_allclose(labels[:, 1:], [[0, 0.6], [0, 0.5], [0, 0.5], [1, 0.1], [0, 0], [0, 0]])


def test_steering_is_clipped_only_where_the_offset_leads_beyond_the_lock(log):
    lines = [fields(i, steering=steering) for i, steering in enumerate(("-1", "1", "0.9", "0"))]
    labels = imported(log, text(lines)).load().labels[:, 0].reshape(3, 4)
    np.testing.assert_allclose(labels, [[-1, 1, 0.9, 0], [-0.8, 1, 1, 0.2], [-1, 0.8, 0.7, -0.2]], atol=1e-7)


def test_the_zone_of_this_machine_has_no_effect(log, monkeypatch):
    """Clocks go back at 2 in the morning: without a zone, one hour of a recording comes twice."""
    lines = [fields(i) for i in range(4)]
    for line, hour in zip(lines, ("01_59_59_900", "02_00_00_000", "02_00_00_100", "02_00_00_200"), strict=True):
        for camera in NAMES[:3]:
            (log.parent / "IMG" / image_name(camera, lines.index(line))).rename(
                log.parent / "IMG" / f"{camera}_2026_10_25_{hour}.png"
            )
            line[camera] = f"IMG/{camera}_2026_10_25_{hour}.png"
    assert [row["length"] for row in imported(log, text(lines)).rows] == [4, 4, 4]


# What is said of it

USED = {
    "all": (PLAIN, "6 of 6 lines used"),
    "twice": ([*PLAIN, *PLAIN[2:4]], "6 of 8 lines used (2 twice)"),
    "alone": (
        [*PLAIN, fields(6, 25), fields(7, 39)],
        "6 of 8 lines used (2 alone: no other image of their episode within a second)",
    ),
}


@pytest.mark.parametrize("kind", USED)
def test_the_command_always_says_how_many_lines_are_used(log, kind, capsys):
    lines, said = USED[kind]
    log.write_text(text(lines))
    assert call("dataset", "import-udacity", str(log), "--out", str(log.parent / "data")) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == f"{log}: {said}"
    log.write_text(text(PLAIN))
    events: list[Event] = []
    nd.import_udacity(log, log.parent / "again", progress=events.append)
    assert events[0] == Event(str(log), 0, 0, "6 of 6 lines used")
    assert [event.done for event in events[1:]] == [0, 1, 2, 3]


def test_relative_folders_are_as_good_as_absolute_ones(log, expected, monkeypatch, capsys):
    log.write_text(text(PLAIN))
    monkeypatch.chdir(log.parent)
    assert call("dataset", "import-udacity", "driving_log.csv", "--out", "data") == 0
    assert capsys.readouterr().out.startswith("driving_log.csv: 6 of 6 lines used\n")
    assert contents(log.parent / "data") == expected


def test_a_recording_that_is_too_slow_is_named(log):
    lines = [fields(i, tenths) for i, tenths in enumerate((0, 11, 25, 37))]
    with pytest.raises(DatasetError, match=r"0 of 4 lines used .*no two images in a row, .*shortest gap is 1.1 s"):
        imported(log, text(lines))
    with pytest.raises(DatasetError, match=r"0 of 1 lines used \(1 alone.*no two images in a row"):
        imported(log, text(PLAIN[:1]))


def test_a_missing_image_is_counted_and_can_be_left_out(log, capsys):
    for index in (1, 4):
        (log.parent / "IMG" / image_name("left", index)).unlink()
    (log.parent / "IMG" / image_name("right", 4)).unlink()
    log.write_text(text(PLAIN))
    arguments = ("dataset", "import-udacity", str(log), "--out", str(log.parent / "data"))
    message = refused(capsys, *arguments)
    assert f"line 3 of {log} names {image_name('left', 1)}, which is no image in {log.parent / 'IMG'}" in message
    assert "2 of 6 lines lack an image" in message
    assert "--skip-missing" in message
    assert call(*arguments, "--skip-missing") == 0
    assert "4 of 6 lines used (2 without an image)" in capsys.readouterr().out
    frames = nd.Demonstrations.open(log.parent / "data").load()
    np.testing.assert_allclose(frames.dt[:4], [0, 0.2, 0.1, 0.2], atol=1e-6)
    center = nd.import_udacity(log, log.parent / "center", steering_offset=0)
    assert [row["length"] for row in center.rows] == [6]  # of the camera in the middle, none is missing


def test_a_recording_of_the_camera_in_the_middle_alone_names_its_option(log, capsys):
    for side in ("left", "right"):
        for image in (log.parent / "IMG").glob(f"{side}_*"):
            image.unlink()
    log.write_text(text(PLAIN))
    arguments = ("dataset", "import-udacity", str(log), "--out", str(log.parent / "data"))
    message = refused(capsys, *arguments)
    assert "6 of 6 lines lack an image: copy the images there, or pass --steering-offset 0 (steering_" in message
    assert "--skip-missing" not in message, "it would leave nothing"
    message = refused(capsys, *arguments, "--skip-missing")
    assert "0 of 6 lines used (6 without an image): an episode needs two images; pass --steering-offset 0" in message
    assert call(*arguments, "--steering-offset", "0") == 0


def test_a_recording_without_any_image_names_the_images(log, capsys):
    shutil.rmtree(log.parent / "IMG")
    log.write_text(text(PLAIN))
    arguments = ("dataset", "import-udacity", str(log), "--out", str(log.parent / "data"))
    message = refused(capsys, *arguments)
    assert message.endswith("6 of 6 lines lack an image: copy the images there.\n")
    message = refused(capsys, *arguments, "--skip-missing")
    assert message.endswith("an episode needs two images; copy the images there.\n")


# What is refused

FIRST, SIDES = fields(0), {"left": "", "right": ""}
REFUSED: dict[str, tuple[Callable[[], str | bytes], str]] = {
    "Center": (
        lambda: text(PLAIN).replace("center,", "Center,", 1),
        "line 1 .*'Center' is not known.*; rename it to center",
    ),
    "reverse": (
        lambda: text(PLAIN).replace("brake", "reverse", 1),
        "line 1 .*'reverse' is not known.*rename or remove",
    ),
    "steering_angle": (lambda: text(PLAIN).replace("steering", "steering_angle", 1), "; rename it to steering"),
    "lines of an old Macintosh": (
        lambda: text(PLAIN).replace("\n", "\r"),
        "line 1 .*end with CR alone; end them with LF",
    ),
    "an index in the header": (
        lambda: "".join(f"{i - 1 if i else ''},{line}\n" for i, line in enumerate(text(PLAIN).splitlines())),
        "line 1 .*column 1 has no name.*remove the index column",
    ),
    "an index": (
        lambda: "".join(f"{i},{line}\n" for i, line in enumerate(text(PLAIN, header=False).splitlines())),
        "line 1 .*it has 8 columns, expected 7.*an index.*remove the index column",
    ),
    "a name twice": (lambda: text(PLAIN).replace("right", "left", 1), "line 1 .*'left' comes twice.*remove one"),
    "no speed": (lambda: text(PLAIN, names=NAMES[:-1]), "line 1 .*'speed' is missing.*add it"),
    "degrees": (
        lambda: text([fields(0), fields(1, steering="-25")]),
        "line 3 .*steering is -25, expected -1 to 1; divide degrees",
    ),
    "steering 5": (lambda: text([fields(0), fields(1, steering="5")]), "steering is 5, expected -1 to 1"),
    "steering 1.2": (lambda: text([fields(0), fields(1, steering="1.2")]), "steering is 1.2, expected -1 to 1"),
    "steering 1e30": (lambda: text([fields(0, steering="1e30")]), "steering is 1e30, expected -1 to 1"),
    "steering nan": (lambda: text([fields(0, steering="nan")]), "line 2 .*steering is nan, expected"),
    "throttle 2": (lambda: text([fields(0, throttle="2")]), "throttle is 2, expected -1 to 1; correct it"),
    "brake -0.5": (lambda: text([fields(0, brake="-0.5")]), "brake is -0.5, expected 0 to 1"),
    "brake inf": (lambda: text([fields(0, brake="inf")]), "brake is inf, expected 0 to 1"),
    "speed nan": (lambda: text([fields(0, speed="nan")]), "speed is nan"),
    "other order without a header": (
        lambda: text(PLAIN, header=False, names=(*NAMES[:3], "speed", "throttle", "brake", "steering")),
        "line 1 .*steering is 9.3, expected -1 to 1.*columns in another order .* need a header",
    ),
    "UTF-16": (lambda: text(PLAIN).encode("utf-16"), "line 1 .*UTF-16.*save the log as UTF-8"),
    "UTF-16 without a mark": (lambda: text(PLAIN).encode("utf-16-le"), "line 1 .*UTF-16.*save the log as UTF-8"),
    "cp1252": (
        lambda: text([fields(0), fields(1, center="C:\\Jörg\\" + image_name("center", 1))]).encode("cp1252"),
        "line 3 .*0xf6, which is not UTF-8; save the log as UTF-8",
    ),
    "semicolons": (lambda: text(PLAIN).replace(",", ";"), "line 1 .*separated by semicolons.*commas, and points"),
    "semicolons and comma decimals": (
        lambda: text(PLAIN, header=False).replace(",", ";").replace(".5", ",5"),
        "line 1 .*separated by semicolons",
    ),
    "tabs": (lambda: text(PLAIN, header=False).replace(",", "\t"), "line 1 .*separated by tabs"),
    "comma decimals": (
        lambda: text([fields(0, steering="0,25", throttle="0,5")]),
        "line 2 .*it has 9 columns, expected 7.*0.25 for 0,25",
    ),
    "quoted comma decimals": (lambda: text([fields(0, steering='"0,25"')]), "steering: .*'0,25'; write a point"),
    "empty side columns": (
        lambda: text([{**FIRST, **SIDES}]),
        "line 2 .*left names no image, got ''; pass --steering-offset 0",
    ),
    "a cut last line": (
        lambda: text(PLAIN).rsplit(",", 3)[0],
        "line 7 .*is cut off, with 4 of 7 columns; delete the line",
    ),
    "cut before the speed": (lambda: text(PLAIN)[:-4], "line 7 .*is cut off, with 7 of 7 columns; delete the line"),
    "a field of 200 kB": (lambda: text([*PLAIN, fields(6, speed="9" * 200_000)]), "line 8 .*longer than 10,000 bytes"),
    "two columns": (lambda: "a,b\n", "line 1 .*it has 2 columns, expected 7: center, left"),
    "a zero byte": (lambda: text(PLAIN).replace("9.3", "9\0", 1), "line 2 .*no text"),
    "no time": (lambda: text([fields(0, center="IMG/center.jpg")]), "line 2 .*'center.jpg' has no time in its name"),
    "month 13": (lambda: text(PLAIN).replace("2026_11", "2026_13", 1), "line 2 .*has no time in its name"),
    "one image, two actions": (
        lambda: text([*PLAIN, {**FIRST, "steering": "0.5"}]),
        "line 8 .*names center_.*png as line 2 does, with other values; keep one",
    ),
    "nothing": (lambda: "", "0 of 0 lines used: an episode needs two images"),
    "a header": (lambda: HEADER + "\n", "0 of 0 lines used: an episode needs two images"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_fault_is_named_with_its_cure_and_leaves_nothing(tmp_path, kind):
    content, message = REFUSED[kind]
    log = tmp_path / "driving_log.csv"
    with pytest.raises(DatasetError, match=message) as caught:
        imported(log, content())
    assert "\n" not in str(caught.value)
    assert str(log) in str(caught.value)
    assert len(str(caught.value)) < 600
    assert [path.name for path in tmp_path.iterdir()] == ["driving_log.csv"]


def test_links_are_refused(log, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    log.write_text(text(PLAIN))
    for path in (log.parent / "IMG", log.parent / "IMG" / image_name("left", 2), log):
        shutil.move(path, elsewhere / path.name)
        path.symlink_to(elsewhere / path.name)
        with pytest.raises(DatasetError, match=rf"{path.name} is (a link|no plain file).*; (replace|pass)"):
            nd.import_udacity(log, log.parent / "data")
        path.unlink()
        shutil.move(elsewhere / path.name, path)
    nd.import_udacity(log, log.parent / "data")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (huge_png(8000), "8000 x 8000 pixels, expected 320 x 160; record at 320 x 160"),
        (b"GIF89a", "it is no JPEG or PNG image"),
        (bytes(2**20 + 1), "larger than 1,048,576 bytes"),
    ],
)
def test_an_image_of_another_kind_is_named_before_it_is_unpacked(log, content, message):
    name = image_name("right", 3)
    (log.parent / "IMG" / name).unlink()
    (log.parent / "IMG" / name).write_bytes(content)
    with pytest.raises(
        DatasetError, match=rf"line 5 of .*{name}, which .*{message}.*; 1 of 6 lines lack an image.*--skip-missing"
    ):
        imported(log, text(PLAIN))
    assert not (log.parent / "data").exists()
    assert [row["length"] for row in imported(log, text(PLAIN), skip_missing=True).rows] == [5, 5, 5]


def test_a_folder_or_nothing_in_place_of_the_log_is_named(tmp_path, capsys):
    for source, message in ((tmp_path, "is no plain file"), (tmp_path / "none.csv", "there is no file")):
        said = refused(capsys, "dataset", "import-udacity", str(source), "--out", str(tmp_path / "data"))
        assert f"{source}" in said
        assert message in said
        assert "pass driving_log.csv" in said


# Several recordings


def test_several_logs_are_one_dataset_and_two_imports_can_be_merged(log, capsys):
    other = log.parent / "other" / "driving_log.csv"
    other.parent.mkdir()
    shutil.copytree(log.parent / "IMG", other.parent / "IMG")
    log.write_text(text(PLAIN))
    other.write_text(text([fields(i, 20 + i) for i in range(4)]))
    first, second, both, merged = (str(log.parent / name) for name in ("first", "second", "both", "merged"))
    assert call("dataset", "import-udacity", str(log), "--out", first, "--episode-frames", "3") == 0
    assert call("dataset", "import-udacity", str(other), "--out", second, "--first-track", "2") == 0
    assert call("dataset", "import-udacity", str(log), str(other), "--out", both, "--episode-frames", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4:-2] == [
        f"{log}: 6 of 6 lines used",
        f"{other}: 4 of 4 lines used",
    ]
    assert nd.Demonstrations.open(both).seeds == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert nd.Demonstrations.open(second).seeds == [2, 2, 2]
    assert call("dataset", "merge", first, second, "--out", merged) == 0
    dataset = nd.Demonstrations.open(merged)
    assert dataset.verify() == []
    assert dataset.seeds == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    said = refused(capsys, "dataset", "merge", first, first, "--out", str(log.parent / "twice"))
    assert "--first-track" in said


def test_frames_are_those_of_their_lines_after_sorting(log):
    shuffled = random.Random(1).sample([fields(i, steering="0") for i in range(30)], 30)
    frames = imported(log, text(shuffled)).load()
    for camera in range(3):
        for index in range(30):
            image = np.full((160, 320, 3), 40 * camera + index, np.uint8)
            np.testing.assert_array_equal(frames.frames[30 * camera + index], udacity_frame(image))


def test_drives_of_the_same_time_are_told(log, capsys):
    """Sorted by time, they would be one drive that jumps."""
    lines = [fields(i, steering="0") for i in (*range(0, 30, 2), *range(1, 30, 2))]
    log.write_text(text(lines))
    assert call("dataset", "import-udacity", str(log), "--out", str(log.parent / "data"), "--steering-offset", "0") == 0
    said = "30 of 30 lines used; 14 out of order: import drives of the same time one by one\n"
    assert said in capsys.readouterr().out


def test_no_line_is_lost_where_a_drive_is_cut(log):
    dataset = imported(log, text([fields(i, steering="0") for i in range(30)]), steering_offset=0, episode_frames=29)
    assert [row["length"] for row in dataset.rows] == [30]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episode_frames": 2.5}, "episode_frames must be a whole number, got 2.5"),
        ({"first_track": -1}, "first_track must lie in 0 to"),
        ({"first_track": 2**63 - 1}, "first_track must lie in 0 to"),
        ({"episode_frames": 1}, "episode_frames must be at least 2"),
        ({"steering_offset": "0.2"}, "steering_offset must be a number, got '0.2'"),
        ({"steering_offset": None}, "steering_offset must be a number, got None"),
        ({"steering_offset": True}, "steering_offset must be a number, got True"),
        ({"steering_offset": 1.5}, r"steering_offset must lie in \[0, 1\], got 1.5"),
        ({"steering_offset": float("nan")}, "steering_offset must be finite, got nan"),
    ],
)
def test_options_out_of_range_are_named(log, options, message):
    with pytest.raises(ValueError, match=message):
        imported(log, text(PLAIN), **options)


def test_a_log_that_comes_twice_and_no_log_are_named(log):
    log.write_text(text(PLAIN))
    with pytest.raises(ValueError, match=r"driving_log\.csv comes twice; pass it once"):
        nd.import_udacity([log, log.parent / "IMG" / ".." / log.name], log.parent / "data")
    for wrong, got in (([], "none"), (None, "None"), (b"log", "b'log'"), ([log, 3], "3")):
        with pytest.raises(ValueError, match=f"^log must .*, got {got}; pass "):
            nd.import_udacity(wrong, log.parent / "data")  # type: ignore[arg-type]
