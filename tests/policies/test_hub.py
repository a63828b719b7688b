"""Drivers on the layout of the Hugging Face hub, without a network."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from markdown_it import MarkdownIt

from nac_drive.data_collection.model_card import save_pretrained
from nac_drive.envs import ENVIRONMENTS, EnvSpec
from nac_drive.policies import CheckpointError, Driver, DriverConfig, load_driver, save_driver
from nac_drive.policies.hub import FILES, from_pretrained
from tests.hostile_names import WORST, hidden


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network was used"))


@pytest.fixture(scope="module")
def driver() -> Driver:
    torch.manual_seed(0)
    driver = Driver(DriverConfig(core="nac-2k", core_args={"num_heads": 2}, d_model=8, frame_shape=(32, 32, 3))).eval()
    driver.env_config, driver.meta = {"control": "discrete", "mask_bar": True}, {"epoch": 7}
    return driver


def assert_equal(first: Driver, second: Driver) -> None:
    frame = np.random.default_rng(0).integers(0, 256, first.config.frame_shape, np.uint8)
    assert (first.config, first.env_config, first.meta) == (second.config, second.env_config, second.meta)
    assert first.act(frame, first.begin(), 0.02)[0] == second.act(frame, second.begin(), 0.02)[0]
    assert all(torch.equal(tensor, second.state_dict()[name]) for name, tensor in first.state_dict().items())


def in_the_cache(driver: Driver, folder: Path, names: tuple[str, ...] = FILES) -> None:
    """Put a driver into a cache of the hub as owner/mine, in the hub's layout of links to blobs."""
    repository, commit = folder / "models--owner--mine", "0" * 40
    saved, snapshot = save_pretrained(driver, folder.parent / "saved"), repository / "snapshots" / commit
    for part in (snapshot, repository / "blobs", repository / "refs"):
        part.mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    for name in names:
        blob = repository / "blobs" / f"blob-of-{name}"
        blob.write_bytes((saved / name).read_bytes())
        (snapshot / name).symlink_to(Path("../../blobs") / blob.name)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_saved_driver_comes_back_without_the_hub(driver, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    folder = save_pretrained(driver, tmp_path / "mine")
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert_equal(from_pretrained(folder), driver)
    champion = from_pretrained("champion-continuous")
    assert champion.config.control == "continuous"


def test_the_hub_reads_the_model_card(driver, tmp_path):
    folder = save_pretrained(driver, tmp_path / "mine", license="mit", metrics={"mean_reward": 905.25})
    card = huggingface_hub.ModelCard.load(folder / "README.md")
    data: Any = card.data
    assert (data.library_name, data.license) == ("nac-drive", "mit")
    assert {"nac-drive", "nac-2k"} <= set(data.tags)
    (result,) = data.eval_results
    assert (result.dataset_name, result.metric_type, result.metric_value) == ("CarRacing-v3", "mean_reward", 905.25)
    parameters = sum(parameter.numel() for parameter in driver.parameters())
    assert f"{parameters:,} parameters" in card.text
    plain: Any = huggingface_hub.ModelCard.load(save_pretrained(driver, tmp_path / "plain") / "README.md").data
    assert (plain.license, plain.eval_results) == (None, None)


@pytest.mark.parametrize(
    ("environment", "dataset", "example"),
    [
        ("car-racing", "CarRacing-v3", 'nd.evaluate(driver, "test-10")'),
        ("donkeycar", "donkeycar", 'nd.evaluate_recorded(driver, "DATASET")'),
        ("udacity", "udacity", 'nd.evaluate_recorded(driver, "DATASET")'),
        ("my-recordings", "my-recordings", 'nd.evaluate_recorded(driver, "DATASET")'),
        ("metadrive", "metadrive", 'nd.evaluate(driver, "test-10")'),
        ("registered-elsewhere-v0", "registered-elsewhere-v0", 'nd.evaluate(driver, "test-10")'),
    ],
)
def test_the_model_card_names_the_environment_of_the_driver(driver, tmp_path, environment, dataset, example):
    ENVIRONMENTS["my-recordings"] = EnvSpec(None)
    try:
        folder = save_driver(tmp_path / "trained", driver, env={"control": "discrete", "environment": environment})
        save_pretrained(load_driver(folder), tmp_path / "mine", metrics={"steering_mae": 0.1})
    finally:
        del ENVIRONMENTS["my-recordings"]
    card = huggingface_hub.ModelCard.load(tmp_path / "mine" / "README.md")
    data: Any = card.data
    assert environment in data.tags
    assert ("car-racing" in data.tags) == (environment == "car-racing")
    assert [(result.dataset_type, result.dataset_name) for result in data.eval_results] == [(dataset, dataset)]
    assert f"    {example}\n" in card.text


def test_the_model_card_of_a_driver_of_somebody_else_is_plain_text(driver, tmp_path):
    folder = save_driver(tmp_path / "theirs", driver, env={WORST: "# <script>\n\n# title"})
    card = save_pretrained(load_driver(folder), tmp_path / "mine") / "README.md"
    body = card.read_text().split("---\n", 2)[2]
    tokens = MarkdownIt("commonmark").parse(body)
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h1"]
    inline = [child for token in tokens if token.type == "inline" for child in token.children or ()]
    assert not {child.type for child in inline} & {"html_inline", "link_open", "image"}
    assert not any(token.type == "html_block" for token in tokens)
    assert hidden(body) == set()


def test_a_model_card_of_ones_own_is_kept(driver, tmp_path):
    folder = save_pretrained(driver, tmp_path / "mine")
    (folder / "README.md").write_text("mine")
    save_pretrained(driver, folder)
    assert (folder / "README.md").read_text() == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "README.md").write_text("no driver")
    with pytest.raises(ValueError, match="is not a driver folder"):
        save_pretrained(driver, tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["README.md"]


def test_a_repository_in_the_cache_needs_no_network(driver, cache):
    in_the_cache(driver, cache)
    assert_equal(from_pretrained("owner/mine"), driver)


@pytest.mark.parametrize("cached", [(), ("README.md",), ("config.json",)])
def test_a_repository_that_is_not_whole_in_the_cache_is_downloaded(driver, cache, cached, monkeypatch):
    if cached:
        in_the_cache(driver, cache, cached)
    local, asked = huggingface_hub.snapshot_download, []

    def download(**settings: Any) -> str:
        if settings.get("local_files_only"):
            return local(**settings)
        asked.append(settings)
        return str(save_pretrained(driver, cache / "fresh"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert_equal(from_pretrained("owner/mine", revision="main"), driver)
    assert asked == [{"repo_id": "owner/mine", "revision": "main", "allow_patterns": list(FILES)}]


def test_a_folder_comes_before_a_repository_of_its_name(driver, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda **_: pytest.fail("the hub was asked"))
    save_pretrained(driver, "owner/mine")
    assert_equal(from_pretrained("owner/mine"), driver)


@pytest.mark.parametrize("error", [LocalEntryNotFoundError("none"), ConnectionError("offline"), "repository"])
def test_a_repository_that_nobody_has_is_one_line(error, cache, monkeypatch):
    if error == "repository":
        error = RepositoryNotFoundError.__new__(RepositoryNotFoundError)

    def download(**settings: Any) -> str:
        raise LocalEntryNotFoundError("none") if settings.get("local_files_only") else error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(FileNotFoundError, match="there is no folder owner/none, and the Hugging Face hub") as caught:
        from_pretrained("owner/none")
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=re.escape("run `pip install 'nac-drive[hub]'`")):
        from_pretrained("owner/none")
    with pytest.raises(FileNotFoundError, match="the package ships no driver of that name"):
        from_pretrained("championn")


def test_a_foreign_repository_is_checked_as_every_driver_folder(driver, cache):
    in_the_cache(driver, cache)
    config = cache / "models--owner--mine" / "blobs" / "blob-of-config.json"
    config.write_text(config.read_text().replace('"d_model": 8', '"d_model": 16'))
    with pytest.raises(CheckpointError):
        from_pretrained("owner/mine")
