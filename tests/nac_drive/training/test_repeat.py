"""A training runs again from its folder alone."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import nac_drive as nd
from nac_drive.envs import EnvConfig
from nac_drive.policies import DriverConfig
from nac_drive.policies.ops.threads import one_thread
from nac_drive.training import repeat as repeat_module
from nac_drive.training import train as train_module
from nac_drive.training.ppo import config as ppo_config
from nac_drive.training.ppo.config import PPOConfig
from nac_drive.training.run_folder import RunFolder
from tests.commands import call, refused
from tests.nac_drive.small import (
    FRAMES,
    TINY,
    Stop,
    checkpoint,
    config,
    dagger_config,
    nested,
    results,
    stop_at,
    train,
    train_dagger,
)


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of a finished run of `train`."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def edit(file: Path, **changed: Any) -> None:
    """Change keys of config.yaml or env.json; None removes one."""
    document = yaml.safe_load(file.read_text()) | changed
    document = {key: value for key, value in document.items() if key not in changed or value is not None}
    file.write_text(json.dumps(document) if file.suffix == ".json" else yaml.safe_dump(document, sort_keys=False))


def test_train_is_repeated_bit_for_bit_whatever_the_number_of_threads(trained, dataset, tmp_path, capsys):
    """The run had one thread; here there are two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        moved = Path(shutil.copytree(dataset.path, tmp_path / "moved"))
        words = ("--out", str(tmp_path / "again"), "--dataset", str(moved), "--workers", "1")
        assert call("repeat", str(trained), *words) == 0
    finally:
        torch.set_num_threads(threads)
    out, err = capsys.readouterr()
    assert "last checkpoint (step 3): the weights are equal, bit for bit\n" in out
    assert "metrics.jsonl: the metrics of every row are equal\nthe result is equal\n" in out
    assert "warning" not in err
    assert results(tmp_path / "again") == results(trained)


def test_a_run_that_patience_stopped_is_finished(dataset, tmp_path, monkeypatch):
    """While it goes on, it is not."""
    monkeypatch.setattr(train_module, "_offline_score", lambda validation: -1.0)  # no epoch is better than the first
    settings = config("cnn", epochs=9, patience=2)
    run = tmp_path / "run"
    with pytest.raises(Stop):
        nd.train(settings, dataset, run, device="cpu", progress=stop_at(1, "epoch 2"))
    with pytest.raises(ValueError, match=r"is not finished: it is at step 2 and has epochs 9; go on with --resume"):
        nd.repeat(run, tmp_path / "again")
    nd.train(settings, dataset, run, device="cpu", resume=True)
    repetition = nd.repeat(run, tmp_path / "again")
    assert repetition.equal
    assert [row["step"] for row in results(tmp_path / "again")["rows"]] == [1, 2, 3]


@pytest.mark.slow
def test_dagger_is_repeated_bit_for_bit(straight, tmp_path):
    repetition = nd.repeat(straight, tmp_path / "again")
    assert repetition.equal
    assert repetition.best == checkpoint(tmp_path / "again", "best")
    assert results(tmp_path / "again") == results(straight)


def test_ppo_is_repeated_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(ppo_config, "EnvConfig", partial(EnvConfig, max_steps=FRAMES))
    config = nested(PPOConfig(),
        driver=DriverConfig(core="lstm", encoder="pooled", d_model=8, dense=8), total_timesteps=32, n_envs=2, n_steps=8,
        action_repeat=1, batch_size=16, n_epochs=1, validate_every=16, validation_tracks="val-1", view="above",
    )  # fmt: skip
    with one_thread():
        nd.ppo(config, tmp_path / "run")
    repetition = nd.repeat(tmp_path / "run", tmp_path / "again")
    assert repetition.equal
    assert results(tmp_path / "again") == results(tmp_path / "run")


def test_other_weights_and_metrics_are_told_with_their_distance(trained, run):
    file = checkpoint(run, "last") / "model.safetensors"
    weights = load_file(file)
    name = next(name for name, tensor in weights.items() if tensor.is_floating_point())
    weights[name].view(-1)[0] += 0.25
    save_file(weights, file)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    rows[1]["loss"] += 0.5
    rows[2]["loss"] -= 0.125
    rows[2]["seconds"] += 99
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    equal, told = repeat_module._compared(RunFolder.open(trained), RunFolder.open(run))
    assert not equal
    assert "last checkpoint (step 3): the weights differ by up to 0.25" in told
    assert "loss differs by up to 0.5" in told
    assert len(told) == 3


def test_one_unlike_bit_is_no_equality():
    one = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3])}
    assert repeat_module._distance(one, {**one, "a": one["a"].nextafter(torch.tensor(9.0))}) == pytest.approx(2**-22)
    assert repeat_module._distance(one, {**one, "a": torch.tensor([1.0, float("nan")])}) == float("inf")
    assert repeat_module._distance(one, {**one, "b": torch.tensor([5])}) == 2
    zero = {"a": torch.zeros(2)}
    assert repeat_module._distance(zero, {"a": -torch.zeros(2)}) == 0  # another bit
    assert repeat_module._distance(zero, {"a": torch.zeros(2)}) is None


def test_differences_of_code_packages_and_machine_are_told_before_the_training(run, tmp_path, monkeypatch):
    machine = json.loads((run / "env.json").read_text())
    versions = {**machine["versions"], "torch": "1.0", "brain": "7"}
    edit(run / "env.json", versions=versions, code_sha256="ab" * 32, git_commit="cd" * 20, python="2.7")

    def train(*_: Any, **__: Any) -> None:
        raise Stop

    monkeypatch.setattr(repeat_module, "train", train)
    with pytest.warns(UserWarning, match="repeat: ") as caught, pytest.raises(Stop):
        nd.repeat(run, tmp_path / "again")
    told = [str(warning.message) for warning in caught]
    assert told[0].startswith("repeat: code of nac-drive was abababababab (commit cdcdcdc), is ")
    assert all(text.endswith("; the result may differ.") for text in told)
    names = [text.removeprefix("repeat: ").split(" was ")[0] for text in told]
    assert names == ["code of nac-drive", "python", "brain", "torch"]
    assert f"torch was 1.0, is {torch.__version__.split('+')[0]}" in told[-1]


@pytest.mark.parametrize("name", ["dataset_sha256", "freeze_encoder_sha256", "init_sha256", "expert_sha256"])
def test_data_and_drivers_with_other_content_are_refused(name, run, straight, tmp_path, capsys):
    if name == "expert_sha256":
        run = Path(shutil.copytree(straight, tmp_path / "dagger"))
    elif name != "dataset_sha256":
        config = yaml.safe_load((run / "config.yaml").read_text())
        key = "init_from" if name == "init_sha256" else "freeze_encoder_from"
        edit(run / "config.yaml", optim=config["optim"] | {key: str(run)})
    edit(run / "config.yaml", **{name: "0" * 64})
    line = refused(capsys, "repeat", str(run), "--out", str(tmp_path / "again"), "--workers", "1")
    assert f"has changed since the run: its SHA-256 was {'0' * 12}, is " in line
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 4}, "is not finished: it is at step 3 and has epochs 4; go on with --resume first"),
        ({"dataset": None}, "does not record dataset, so it cannot be repeated"),
        ({"epochs": None}, "does not record epochs, so it cannot be repeated"),
        ({"dataset": "gone"}, "no dataset at gone"),
        ({"format": 3}, "another version of nac-drive"),
        ({"epochs": "many"}, "epochs must be a whole number"),
    ],
)
def test_a_run_that_cannot_be_repeated_is_refused(change, message, run, tmp_path, capsys):
    edit(run / "config.yaml", **change)
    assert message in refused(capsys, "repeat", str(run), "--out", str(tmp_path / "again"), "--workers", "1")
    assert not (tmp_path / "again").exists()


def test_a_run_that_grew_is_not_repeated(dataset, tmp_path):
    """A repetition called it not equal."""
    for epochs in (1, 2, 3):
        train(config(epochs=epochs), dataset, tmp_path / "run", resume=epochs > 1)
    with pytest.raises(ValueError, match=r"was begun with 1 epochs and went on with more by --resume"):
        nd.repeat(tmp_path / "run", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_person_is_not_repeated(straight, tmp_path):
    run = Path(shutil.copytree(straight, tmp_path / "run"))
    edit(run / "config.yaml", expert="human")
    with pytest.raises(ValueError, match="labelled by a person"):
        nd.repeat(run, tmp_path / "again")


def test_a_link_in_the_folder_is_not_followed(run, tmp_path, capsys):
    (run / "env.json").unlink()
    (run / "env.json").symlink_to("/etc/passwd")
    assert "is a link" in refused(capsys, "repeat", str(run), "--out", str(tmp_path / "again"), "--workers", "1")


def test_an_expert_that_was_an_object_is_named_and_not_repeated(tmp_path):
    class Straight:
        def begin(self, env: Any) -> None: ...

        def act(self, observation: Any, state: Any, dt: float) -> tuple[int, Any]:
            return 3, state

    run = tmp_path / "run"
    train_dagger(dagger_config("cnn", **TINY, rounds=0), run, expert=Straight())
    assert RunFolder.open(run).config["expert"] == "Straight"
    with pytest.raises(FileNotFoundError, match="Straight"):
        nd.repeat(run, tmp_path / "again")
