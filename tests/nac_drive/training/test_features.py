"""Features of a frozen encoder: computed once, kept beside the dataset, and taken from no file that is not theirs."""

from __future__ import annotations

import errno
import importlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.data_collection.dataset.stored_frames import StoredFrames
from nac_drive.data_collection.identity import source_hash
from nac_drive.envs import EnvConfig
from nac_drive.policies import Driver, DriverConfig
from nac_drive.storage.own_key import own_key
from nac_drive.training.data import features
from nac_drive.training.data.features import FEATURES, encoder_key, frozen_features, sign
from nac_drive.training.data.images import flip_frames, masked

CPU = torch.device("cpu")
ENV = EnvConfig()
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def data(dataset, tmp_path) -> Demonstrations:
    """A dataset of its own without features."""
    copy = shutil.copytree(dataset.path, tmp_path / "dataset", ignore=shutil.ignore_patterns(FEATURES))
    return Demonstrations.open(copy)


@pytest.fixture(scope="module")
def encoder() -> torch.nn.Module:
    torch.manual_seed(0)
    return Driver(DriverConfig(encoder="paper")).eval().encoder


@pytest.fixture(scope="module")
def computed(dataset, encoder, tmp_path_factory) -> tuple[Path, Tensor]:
    """The folder of a dataset with features, and the features; read only."""
    folder = tmp_path_factory.mktemp("computed") / "dataset"
    shutil.copytree(dataset.path, folder, ignore=shutil.ignore_patterns(FEATURES))
    return folder, torch.stack(compute(encoder, Demonstrations.open(folder)))


@pytest.fixture
def kept(computed, tmp_path) -> tuple[Demonstrations, Tensor]:
    """A copy of it."""
    return Demonstrations.open(shutil.copytree(computed[0], tmp_path / "kept")), computed[1]


def compute(encoder: torch.nn.Module, data: Demonstrations, env: EnvConfig = ENV) -> list[Tensor]:
    return frozen_features(encoder, data.stream(), env, CPU, (False, True), data.path)


def files(data: Demonstrations) -> list[Path]:
    return sorted((data.path / FEATURES).glob("*/*"))


def test_they_are_those_of_the_frames_and_kept_for_the_next_run(data, encoder, monkeypatch):
    before = data.fingerprint()
    plain, flipped = compute(encoder, data)
    frames = torch.from_numpy(data.load().frames)
    with torch.no_grad():
        torch.testing.assert_close(plain, encoder(frames))
        torch.testing.assert_close(flipped, encoder(flip_frames(frames, ENV.spec)))
    assert len(files(data)) == 2 * len(data)
    assert sum(file.stat().st_size for file in files(data)) < 2 * len(frames) * 4 * 64 + 6 * 1024
    assert data.verify() == []
    assert Demonstrations.open(data.path).fingerprint() == before
    monkeypatch.setattr(StoredFrames, "read", lambda *_: pytest.fail("a frame was decoded"))
    again = compute(encoder, data)
    assert torch.equal(torch.stack(again), torch.stack([plain, flipped]))


def test_another_encoder_or_mask_has_features_of_its_own(data, encoder):
    first = compute(encoder, data)
    torch.manual_seed(1)
    other = Driver(DriverConfig(encoder="paper")).eval().encoder
    hidden = replace(ENV, mask_bar=True)
    for each, env in ((other, ENV), (encoder, hidden)):
        with torch.no_grad():
            expected = each(torch.from_numpy(masked(data.load().frames, env)))
        found = compute(each, data, env)
        torch.testing.assert_close(found[0], expected)
        assert not torch.allclose(found[0], first[0], atol=1e-3)
    keys = {
        encoder_key(each, env, CPU, flip)
        for each in (encoder, other)
        for env in (ENV, hidden)
        for flip in (False, True)
    }
    assert len(keys) == 8
    assert len(files(data)) == 6 * len(data)


def test_an_edited_encoder_has_features_of_its_own(tmp_path, monkeypatch):
    """An edited encoder silently had the features of before."""
    keys = set()
    for number in (255.0, 127.0, 255.0):
        (tmp_path / "mine.py").write_text(
            f"from torch import nn\nclass Mine(nn.Module):\n    def forward(self, x):\n        return x / {number}\n"
        )
        source_hash.cache_clear()
        monkeypatch.syspath_prepend(tmp_path)
        sys.modules.pop("mine", None)
        keys.add(encoder_key(importlib.import_module("mine").Mine(), ENV, CPU, False))
    sys.modules.pop("mine")
    assert len(keys) == 2


def test_an_episode_is_computed_in_blocks(data, computed, encoder, monkeypatch):
    monkeypatch.setattr(features, "_BLOCK", 32)
    torch.testing.assert_close(torch.stack(compute(encoder, data)), computed[1], atol=1e-5, rtol=0)
    assert len(files(data)) == 2 * len(data)


def rewritten(change: Callable[[Tensor], Tensor], honest: bool) -> Callable[[Path], object]:
    """A change of the numbers of a file; this user signs the changed ones if `honest`."""

    def apply(file: Path) -> None:
        with features.safe_open(file, "pt") as opened:
            metadata = opened.metadata()
        numbers = change(load_file(file)["features"].clone())
        if honest:
            metadata["mac"] = sign(own_key(), metadata["encoder"], metadata["episode"], numbers.contiguous())
        save_file({"features": numbers.contiguous()}, file, metadata)

    return apply


def swapped(file: Path) -> None:
    """The features of another episode."""
    other = next(path for path in sorted(file.parent.iterdir()) if path != file)
    shutil.copy(other, file)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "empty": lambda file: file.write_bytes(b""),
    "no safetensors": lambda file: file.write_bytes(b"x" * file.stat().st_size),
    "a flipped bit": lambda file: file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1])),
    "other numbers": rewritten(lambda numbers: numbers + 1, honest=False),
    "NaN": rewritten(lambda numbers: numbers * torch.nan, honest=True),
    "other shape": rewritten(lambda numbers: numbers.T, honest=True),
    "other type": rewritten(lambda numbers: numbers.view(torch.int32), honest=True),
    "another episode": swapped,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_that_is_damaged_or_foreign_is_written_again(name, kept, encoder):
    data, expected = kept
    file = files(data)[1]
    before, numbers = file.read_bytes(), load_file(file)["features"].clone()  # not mapped
    DAMAGE[name](file)
    assert file.read_bytes() != before
    assert torch.equal(torch.stack(compute(encoder, data)), expected)
    assert torch.equal(load_file(file)["features"], numbers)


def signed_by_a_stranger(file: Path, signature: str) -> None:
    """Features of a stranger's choice, with everything that a stranger can write."""
    with features.safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    numbers = load_file(file)["features"] + 1
    del metadata["mac"]
    if signature == "mac":
        metadata["mac"] = sign(b"a key of the stranger", metadata["encoder"], metadata["episode"], numbers)
    else:
        metadata["sha256"] = features.hashlib.sha256(numbers.numpy().tobytes()).hexdigest()
    save_file({"features": numbers}, file, metadata)


@pytest.mark.parametrize("signature", ["mac", "sha256"])
def test_features_that_came_with_the_dataset_of_somebody_else_are_not_used(
    signature, kept, encoder, tmp_path, monkeypatch
):
    data, expected = kept
    for file in files(data):
        signed_by_a_stranger(file, signature)
    assert torch.equal(torch.stack(compute(encoder, data)), expected)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of another user"))  # who gets this user's sound features
    reads, read = [], StoredFrames.read
    monkeypatch.setattr(StoredFrames, "read", lambda *arguments: reads.append(1) or read(*arguments))
    assert torch.equal(torch.stack(compute(encoder, data)), expected)
    assert reads
    assert (tmp_path / "of another user" / "nac-drive").stat().st_mode & 0o077 == 0


def test_without_a_place_for_the_key_features_are_not_kept(data, encoder, tmp_path, monkeypatch, recwarn):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compute(encoder, data)[0].isfinite().all()
    assert files(data) == []
    assert all("no key can be kept" in str(warning.message) for warning in recwarn)


@pytest.mark.parametrize("place", ["features", "encoder", "file"])
def test_nothing_outside_of_the_dataset_is_touched(place, kept, encoder, tmp_path, recwarn):
    data, expected = kept
    file = files(data)[0]
    linked = {"features": file.parent.parent, "encoder": file.parent, "file": file}[place]
    outside = tmp_path / "outside"
    linked.rename(outside)
    linked.symlink_to(outside)
    (file if place == "file" else next(outside.rglob("*.safetensors"))).write_bytes(b"victim")
    before = {path: path.read_bytes() for path in (outside, *outside.rglob("*")) if path.is_file()}
    assert torch.equal(torch.stack(compute(encoder, data)), expected)
    assert {path: path.read_bytes() for path in (outside, *outside.rglob("*")) if path.is_file()} == before
    assert any("it is a link" in str(warning.message) for warning in recwarn) == (place != "file")


def test_a_dataset_that_cannot_be_written_costs_one_warning(data, encoder, monkeypatch, recwarn):
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(features, "write_atomically", read_only)
    (plain,) = frozen_features(encoder, data.stream(), ENV, CPU, dataset=data.path)
    assert plain.isfinite().all()
    assert files(data) == []
    (warning,) = [str(each.message) for each in recwarn]
    assert "Read-only file system; every run computes them again" in warning
    assert "\n" not in warning
