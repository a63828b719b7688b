"""Folders of Minari that somebody else made: a sound dataset, or one line, and Minari never reads it."""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from tests.commands import call, refused
from tests.data_collection.dataset.exports import grey, write_minari
from tests.data_collection.dataset.test_hostile_files import few_megabytes
from tests.envs.test_udacity_images import huge_png
from tests.slow import slow_but

SECRET = b"a file of the system"


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A dataset of two episodes, as Minari writes it. Not to be changed."""
    return write_minari(tmp_path_factory.mktemp("sound") / "other/cars-v0", [grey(3), grey(4)], [5, 6])


@pytest.fixture(scope="module")
def sound_jpeg(tmp_path_factory) -> Path:
    """The same with JPEG frames, of one size and of several; not to be changed."""
    noise = {**grey(4), "observations": np.random.default_rng(0).integers(256, size=(5, 96, 96, 3), dtype=np.uint8)}
    return write_minari(tmp_path_factory.mktemp("sound") / "other/jpeg-v0", [grey(3), noise], [5, 6], jpeg=True)


def in_episode(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Change the second episode."""

    def attack(data: Path) -> None:
        with h5py.File(data / "main_data.hdf5", "r+") as file:
            change(file["episode_1"])

    return attack


def put(name: str, **storage: Any) -> Callable[[Path], None]:
    """Replace an array of the second episode."""

    def change(episode: Any) -> None:
        if name in episode:
            del episode[name]
        episode.create_dataset(name, **storage)

    return in_episode(change)


def link(name: str, target: Any) -> Callable[[Path], None]:
    """Replace an array of the second episode by a link."""

    def change(episode: Any) -> None:
        if name in episode:
            del episode[name]
        episode[name] = target(episode) if callable(target) else target

    return in_episode(change)


def external(data: Path) -> None:
    (data.parent / "secret").write_bytes(SECRET * 10_000)
    place = [(str(data.parent / "secret"), 0, h5py.h5f.UNLIMITED)]
    put("observations", shape=(5, 96, 96, 3), dtype="u1", external=place)(data)


def virtual(data: Path) -> None:
    layout = h5py.VirtualLayout(shape=(4,), dtype="f8")
    layout[:] = h5py.VirtualSource("/etc/passwd", "reward", shape=(4,))

    def change(episode: Any) -> None:
        del episode["rewards"]
        episode.create_virtual_dataset("rewards", layout)

    in_episode(change)(data)


def bomb(data: Path) -> None:
    """A chunk that unpacks to 300 times its declared size."""
    put("rewards", shape=(4,), dtype="f8", chunks=(4,), compression="gzip")(data)
    in_episode(lambda episode: episode["rewards"].id.write_direct_chunk((0,), zlib.compress(bytes(10_000))))(data)


def nested(episode: Any) -> None:
    for _ in range(20):
        episode = episode.create_group("infos")


def metadata(**values: Any) -> Callable[[Path], None]:
    """Change metadata.json; None removes a key."""

    def attack(data: Path) -> None:
        document = json.loads((data / "metadata.json").read_text()) | values
        kept = {key: value for key, value in document.items() if value is not None}
        (data / "metadata.json").write_text(json.dumps(kept))

    return attack


def box(**values: Any) -> str:
    return json.dumps({"type": "Box", "dtype": "uint8", "shape": [96, 96, 3], "low": 0, "high": 255, **values})


def program(data: Path) -> None:
    """Without spaces, Minari makes the environment: any callable with any arguments."""
    spec = {
        "id": "x-v0", "entry_point": "os:mkdir", "kwargs": {"path": str(data.parent / "touched")},
        "additional_wrappers": [], "vector_entry_point": None, "reward_threshold": None, "nondeterministic": False,
        "max_episode_steps": None, "order_enforce": True, "disable_env_checker": False,
    }  # fmt: skip
    metadata(observation_space=None, action_space=None, env_spec=json.dumps(spec))(data)


def link_file(name: str) -> Callable[[Path], None]:
    def attack(data: Path) -> None:
        shutil.move(data / name, data.parent / "elsewhere")
        (data / name).symlink_to(data.parent / "elsewhere")

    return attack


def link_folder(data: Path) -> None:
    shutil.move(data, data.parent / "elsewhere")
    data.symlink_to(data.parent / "elsewhere")


CHUNKS = {"chunks": (1000,), "compression": "gzip"}
FRAMES = {"dtype": "u1", "chunks": (16, 96, 96, 3), "compression": "gzip"}
ATTACKS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "12 GB of rewards, none stored": (put("rewards", shape=(1_500_000_000,), dtype="f8", **CHUNKS), "up to 1,000,000"),
    "8 MB of rewards, none stored": (put("rewards", shape=(1_000_000,), dtype="f8", **CHUNKS), "not stored whole"),
    "rewards in one piece, none stored": (put("rewards", shape=(1_000_000,), dtype="f8"), "not stored whole"),
    "200,000 empty observations": (put("observations", shape=(200_000, 96, 96, 3), **FRAMES), "not stored whole"),
    "infos of 8 TB": (put("infos/x", shape=(10**6, 10**6), dtype="f8", chunks=(1000, 1000)), "not stored whole"),
    "80 MB of zeros in 80 KB": (
        put("infos/x", data=np.zeros(10**7), chunks=(10**5,), compression="gzip"),
        "would unpack to 80,.* bytes",
    ),
    "a bomb": (bomb, "a chunk of episode_1/rewards is not 32 bytes"),
    "a scalar": (put("rewards", data=1.0), r"rewards is \(\)"),
    "nothing": (put("infos/x", data=h5py.Empty("f8")), "infos/x is not stored in the file"),
    "another filter": (put("rewards", data=np.zeros(4), chunks=(4,), compression="lzf"), "another filter than gzip"),
    "references": (put("infos/x", shape=(4,), dtype=h5py.ref_dtype), "expected numbers, text or bytes"),
    "a compound": (put("infos/x", shape=(4,), dtype=[("a", "f8")]), "expected numbers, text or bytes"),
    "external storage": (external, "observations is not stored in the file"),
    "a virtual array": (virtual, "rewards is not stored in the file"),
    "an external link": (link("actions", h5py.ExternalLink("/etc/passwd", "/x")), "actions is a link to another place"),
    "a soft link": (link("actions", h5py.SoftLink("/episode_0/actions")), "actions is a link to another place"),
    "a soft link to the root": (link("infos", h5py.SoftLink("/")), "infos is a link to another place"),
    "a hard link to the root": (
        link("infos", lambda episode: episode.file["/"]),
        "link to another place|neither a group",
    ),
    "a hard link to itself": (link("infos", lambda episode: episode), "infos is a link to another place"),
    "one array twice": (link("infos", lambda episode: episode.file["episode_0"]), "infos is a link to another place"),
    "deep groups": (in_episode(nested), "is nested too deeply"),
    "a type": (link("infos", np.dtype("f8")), "neither a group nor an array"),
    "no rewards": (in_episode(lambda episode: episode.pop("rewards")), "rewards is missing"),
    "a seed of text": (in_episode(lambda episode: episode.attrs.__setitem__("seed", "x")), "the seed of episode_1 is"),
    "two seeds": (in_episode(lambda episode: episode.attrs.__setitem__("seed", [1, 2])), "the seed of episode_1 is"),
    "a billion episodes": (metadata(total_episodes=10**9), "holds 2 episodes, and metadata.json says 1,000,000,000"),
    "one episode": (metadata(total_episodes=1), "holds 2 episodes, and metadata.json says 1"),
    "no number of episodes": (metadata(total_episodes=None), "missing required field `total_episodes`"),
    "half an episode": (metadata(total_episodes=1.5), "Expected `int`"),
    "arrow": (metadata(data_format="arrow"), "Invalid enum value 'arrow'"),
    "a program": (program, "missing required field `observation_space`"),
    "a space of 10 TB": (metadata(observation_space=box(shape=[10**6, 10**7])), "declares .1000000, 10000000. in"),
    "wide text": (metadata(observation_space=box(dtype="U1000000")), "observation_space is not one array"),
    "a dict": (metadata(observation_space='{"type": "Dict", "subspaces": {}}'), "is not one array"),
    "deep JSON": (metadata(action_space="[" * 10_000), "action_space is not one array"),
    "5 MB of metadata": (metadata(description="x" * 5_000_000), "larger than 4,194,304 bytes"),
    "linked metadata": (link_file("metadata.json"), "metadata.json is no plain file"),
    "linked content": (link_file("main_data.hdf5"), "main_data.hdf5 is no plain file"),
    "a linked folder": (link_folder, "data is a link"),
    "no HDF5": (
        lambda data: shutil.copy(__file__, data / "main_data.hdf5"),
        "main_data.hdf5 cannot be read",
    ),
}


@pytest.mark.parametrize("kind", slow_but([*ATTACKS][::3], ATTACKS))
def test_a_hostile_folder_is_refused_before_minari_reads_it(sound, tmp_path, kind, monkeypatch, capsys):
    folder = shutil.copytree(sound, tmp_path / "other/cars-v0")
    attack, message = ATTACKS[kind]
    attack(folder / "data")
    monkeypatch.setattr(minari, "MinariDataset", lambda *arguments: pytest.fail("read"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    for source in (str(folder), "other/cars-v0"):
        with few_megabytes():
            said = refused(capsys, "dataset", "import", source, "--out", str(tmp_path / "out"))
        assert re.search(message, said), said
        assert "; pass " in said or "; replace it by a copy" in said
        assert len(said) < 700
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.rglob("touched"))


def jpeg_element(content: bytes) -> Callable[[Path], None]:
    def change(episode: Any) -> None:
        episode["observations"][2] = np.frombuffer(content, np.uint8)

    return in_episode(change)


def billion_pixels(data: Path) -> None:
    """An image of 30,000 x 30,000 pixels."""
    jpeg_element(huge_png(30_000))(data)


def long_element(data: Path) -> None:
    """An element of variable length that declares 4 GB."""

    def change(episode: Any) -> None:
        array = episode["observations"].id
        mask, chunk = array.read_direct_chunk((0,))
        array.write_direct_chunk((0,), b"\xff\xff\xff\xff" + chunk[4:], mask)

    in_episode(change)(data)


JPEG_ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a billion pixels": (
        billion_pixels,
        r"image 2 of episode_1/observations is \(30000, 30000\), expected",
    ),
    "no image": (jpeg_element(b"GIF89a"), "image 2 of episode_1/observations is None, expected"),
    "an element of 4 GB": (long_element, "observations is larger than the file"),
    "gzip": (
        put("observations", shape=(5,), dtype=h5py.vlen_dtype(np.uint8), chunks=(5,), compression="gzip"),
        "not stored in plain chunks",
    ),
}


@pytest.mark.parametrize("kind", JPEG_ATTACKS)
def test_hostile_images_are_refused_before_minari_unpacks_them(sound_jpeg, tmp_path, kind, monkeypatch, capsys):
    folder = shutil.copytree(sound_jpeg, tmp_path / "jpeg-v0")
    attack, message = JPEG_ATTACKS[kind]
    attack(folder / "data")
    monkeypatch.setattr(minari, "MinariDataset", lambda *arguments: pytest.fail("read"))
    with few_megabytes():
        said = refused(capsys, "dataset", "import", str(folder), "--out", str(tmp_path / "out"))
    assert re.search(message, said), said
    assert not (tmp_path / "out").exists()


def test_a_damaged_image_is_named(sound_jpeg, tmp_path, capsys):
    folder = shutil.copytree(sound_jpeg, tmp_path / "jpeg-v0")

    def cut(episode: Any) -> None:
        episode["observations"][2] = episode["observations"][2][:1000]

    in_episode(cut)(folder / "data")
    said = refused(capsys, "dataset", "import", str(folder), "--out", str(tmp_path / "out"))
    assert "episode 1 of the Minari dataset cannot be read" in said
    assert not (tmp_path / "out").exists()


def test_sound_folders_are_read_by_path_and_by_id(sound, sound_jpeg, tmp_path, monkeypatch):
    for number, folder in enumerate((sound, sound_jpeg)):
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder.parents[1]))
        for source in (str(folder), str(folder / "data"), "/".join(folder.parts[-2:])):
            out = tmp_path / f"{number}-{len(source)}"
            assert call("dataset", "import", source, "--out", str(out)) == 0
            assert Demonstrations.open(out).seeds == [5, 6]
