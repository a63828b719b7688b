"""A result is repeatable, and a forged one is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nac_drive as nd
from benchmarks.challenge import PAGE, results, table
from nac_drive.data_collection.drivers import driver_hash
from nac_drive.envs import METADRIVE_EMPTY
from nac_drive.experiments import challenge_check
from nac_drive.experiments.challenge import challenge_driver
from nac_drive.experiments.challenge_check import verify_challenge
from nac_drive.experiments.challenge_result import (
    TRACKS,
    WORLDS,
    digest_of,
    plain_result,
    read_challenge,
    score_of,
    table_row,
)
from nac_drive.experiments.journal import ROWS
from nac_drive.policies.checkpoint import PRETRAINED
from nac_drive.storage.read import FileError
from tests.commands import call, refused


class Straight:
    """Holds the gas."""

    control = "continuous"

    def __init__(self, gas: float = 0.5) -> None:
        self.gas = gas

    def begin(self, env: Any) -> None:
        return None

    def act(self, observation: Any, state: None, dt: float) -> tuple[list[float], None]:
        return [0.0, self.gas, 0.0], None


@pytest.fixture(scope="module", autouse=True)
def short():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nd.EnvConfig, "max_steps", 60)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The result of `Straight` on three tracks. Not to be changed."""
    path = tmp_path_factory.mktemp("challenge") / "result.json"
    nd.challenge(Straight(), path, tracks=3)
    return path


def forged(made: Path, folder: Path, change: Callable[[dict[str, Any]], object], *, consistent: bool = False) -> Path:
    """Return a changed result, made consistent by a careful forger."""
    content = json.loads(made.read_text())
    change(content)
    path = folder / "forged.json"
    path.write_text(json.dumps(content))
    if consistent:
        result = read_challenge(path)
        result.table = [table_row(world) for world in result.worlds]
        result.score = score_of(result.table)
        result.sha256 = digest_of(result)
        path.write_text(json.dumps(plain_result(result)))
    return path


def test_a_result_holds_and_says_what_it_was_measured_with(made):
    check = verify_challenge(made, Straight(), sample=15)
    assert (check.faults, check.driven) == ([], 15)
    assert check.notes == ["a rehearsal: 3 of 1,000 tracks"]
    result = read_challenge(made)
    assert result.seeds == list(TRACKS[:3])
    assert not result.official
    assert [world.name for world in result.worlds[:5]] == [world.name for world in WORLDS]
    assert {*result.left_out, *(world.name for world in result.worlds[5:])} == {"MetaDrive"}
    evaluation = nd.evaluate(
        Straight(), result.seeds, env=nd.EnvConfig("continuous", max_steps=60), perturbation="action-delay:2"
    )
    assert [row.episode_return for row in evaluation.rows] == result.worlds[3].returns
    row = result.table[3]
    assert row.mean == pytest.approx(evaluation.summary.return_mean)
    assert row.sd == pytest.approx(evaluation.summary.return_sd)
    assert row.below_800 == 3
    assert result.score == pytest.approx(sum(row.mean for row in result.table[:5]) / 5)
    assert "rehearsal" in (made.with_suffix("") / "report.html").read_text()


def test_an_interrupted_run_goes_on_to_the_same_result(made, tmp_path):
    path = tmp_path / "result.json"
    with pytest.raises(RuntimeError, match="enough"):
        nd.challenge(Straight(), path, tracks=3, progress=_stop_after(4))
    assert not path.exists()
    with pytest.raises(FileExistsError, match="already exists"):
        nd.challenge(Straight(), path, tracks=3)
    rows = (path.with_suffix("") / ROWS).read_text()
    assert 4 <= rows.count("\n") < 15
    again = nd.challenge(Straight(), path, tracks=3, resume=True)
    assert again == read_challenge(path) == read_challenge(made)
    assert (path.with_suffix("") / ROWS).read_text().startswith(rows.splitlines()[0])
    with pytest.raises(FileExistsError, match=r"result.json already exists"):
        nd.challenge(Straight(), path, tracks=3, resume=True)


def _stop_after(events: int) -> Callable[[Any], None]:
    seen: list[Any] = []

    def progress(event: Any) -> None:
        seen.append(event)
        if len(seen) > events:
            raise RuntimeError("enough")

    return progress


def _raise_a_return(content: dict[str, Any]) -> None:
    content["worlds"][1]["returns"][2] += 1e-9


FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a return": (_raise_a_return, "1 track"),
    "a world is missing": (lambda content: content["worlds"].pop(2), "the world 'lost frames' is missing"),
    "an easier world": (
        lambda content: content["worlds"][1].update(perturbation="gaussian-noise:1"), "is not gaussian-noise:2"
    ),
    "a world twice": (lambda content: content["worlds"].append(content["worlds"][0]), "in this order"),
    "a return is missing": (lambda content: content["worlds"][0]["returns"].pop(), "2 returns and 3 lengths"),
    "other tracks": (lambda content: content.update(seeds=[940000, 940001, 940003]), "not the first tracks"),
    "official": (lambda content: content.update(official=True), "official is True, and it has 3 of 1,000"),
    "another road left out": (lambda content: content.update(left_out={}), "neither there nor left out"),
    "hash of the driver": (lambda content: content["driver"].update(sha256="0" * 64), "has another hash"),
    "lengths": (lambda content: content["worlds"][0].update(lengths=[]), "3 returns and 0 lengths, expected 3"),
    "a world left out that counts": (
        lambda content: content["left_out"].update(clean="rain"), "'clean' is left out, and must not be"
    ),
    "environment": (lambda content: content["driver"]["env"].update(mask_bar=True), "sees and acts otherwise"),
    "control": (lambda content: content["driver"]["env"].update(control="discrete"), "made for continuous control"),
    "an unknown setting": (
        lambda content: content["driver"]["env"].update(foo=1), "env is no environment (EnvConfig.__init__() got an"
    ),
    "a size of none": (lambda content: content["driver"]["env"].update(size=None), "env is no environment"),
    "frames below none": (lambda content: content["driver"]["env"].update(max_steps=-4), "at least 1, got -4)"),
    "another road": (lambda content: content["driver"]["env"].update(environment="mine.py:Road"), "no environment"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forged_result_is_found(made, tmp_path, kind):
    change, message = FORGERIES[kind]
    plain = verify_challenge(forged(made, tmp_path, change), Straight(), sample=0)
    assert any("the digest is another one" in fault for fault in plain.faults)
    careful = verify_challenge(forged(made, tmp_path, change, consistent=True), Straight(), sample=15)
    if kind == "a return":
        assert len(careful.faults) == 1
        assert careful.faults[0].startswith(f"noise, track {TRACKS[2]}: return ")
        assert "driven again" in careful.faults[0]
    else:
        assert any(message in fault for fault in careful.faults), careful.faults


def test_a_table_and_a_score_follow_from_the_returns(made, tmp_path):
    content = json.loads(made.read_text())
    for change, message in (
        (lambda new: new["table"][0].update(mean=999.0), "its table does not follow"),
        (lambda new: new.update(score=999.0), "its score does not follow"),
    ):
        path = forged(made, tmp_path, change)
        result = read_challenge(path)
        result.sha256 = digest_of(result)
        path.write_text(json.dumps(plain_result(result)))
        assert any(message in fault for fault in verify_challenge(path).faults)
    assert verify_challenge(made).notes[-1] == "no row was driven again: pass the driver (--driver)"
    content["code"]["sha256"] = "0" * 64
    (tmp_path / "other.json").write_text(json.dumps(content))
    assert any("measured with other code" in note for note in verify_challenge(tmp_path / "other.json").notes)


def test_another_driver_is_found(made):
    assert any("has another hash" in fault for fault in verify_challenge(made, Straight(0.6)).faults)


def test_what_is_no_result_is_refused_in_one_line(made, tmp_path, capsys):
    for change, message in (
        (lambda content: content.update(version=2), "version 2, expected"),
        (lambda content: content.update(more=1), "unknown field `more`"),
        (lambda content: content["worlds"][0].update(returns=["a"]), "Expected `float`"),
    ):
        path = forged(made, tmp_path, change)
        with pytest.raises(FileError):
            read_challenge(path)
        assert message in refused(capsys, "challenge", "verify", str(path))
    assert "needs --driver and --out" in refused(capsys, "challenge", "--out", str(tmp_path / "x.json"))
    assert "needs a result" in refused(capsys, "challenge", "verify")
    assert "tracks must be left out with verify" in refused(capsys, "challenge", "verify", str(made), "--tracks", "3")
    wrong = refused(capsys, "challenge", "verify", str(made), "--driver", "champion-discrete")
    assert f"{made} does not hold: driver 'champion-discrete' was made for discrete control" in wrong
    assert "--control" not in wrong
    arguments = ("challenge", "--driver", "controller", "--out", str(tmp_path / "x.json"), "--tracks")
    assert "from 1 to 1000, got 0" in refused(capsys, *arguments, "0")
    assert "ends with .json" in refused(capsys, "challenge", "--driver", "controller", "--out", str(tmp_path / "x"))


def test_a_world_that_cannot_be_driven_here_is_left_out_of_the_sample(made, tmp_path, monkeypatch):
    def elsewhere(content: dict[str, Any]) -> None:
        first = content["worlds"][0]
        other = {"name": "MetaDrive", "environment": METADRIVE_EMPTY, "returns": first["returns"]}
        content["worlds"] = [*content["worlds"][:5], first | other]
        content["left_out"] = {}

    monkeypatch.setattr(challenge_check, "other_road", lambda world, env: "not installed")
    check = verify_challenge(forged(made, tmp_path, elsewhere, consistent=True), Straight(), sample=99)
    assert (check.faults, check.driven) == ([], 15)
    assert "no row of MetaDrive was driven again: not installed" in check.notes


def test_the_standing_table_is_made_of_the_results():
    found = results()
    assert found
    assert table(found) in PAGE.read_text()
    for result in found:
        assert challenge_check._faults(result) == []


def test_the_standing_table_is_of_the_shipped_drivers():
    standing = {f"{result.driver.name}-{result.driver.env['control']}": result.driver.sha256 for result in results()}
    shipped = {name: driver_hash(name, challenge_driver(name, None)[1]) for name in PRETRAINED}
    by_pulses = {f"{name}-pulsed": driver_hash(name, nd.EnvConfig("pulsed")) for name in ("champion", "ncp")}
    assert {**shipped, **by_pulses} == standing


def test_the_command_drives_and_verifies(tmp_path, capsys):
    out = tmp_path / "result.json"
    assert call("challenge", "--driver", "controller", "--out", str(out), "--tracks", "1", "--workers", "1") == 0
    assert "controller: score" in capsys.readouterr().out
    assert call("challenge", "verify", str(out), "--sample", "1") == 0  # a controller comes with the package, too
    assert "holds, 1 rows driven again" in capsys.readouterr().out
    assert "has another hash" in refused(capsys, "challenge", "verify", str(out), "--driver", "champion")
