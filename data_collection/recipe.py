"""Publish a dataset as one small file, and drive it again from there, bit for bit. See `recipe_file`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from data_collection.dataset import Demonstrations
from data_collection.episode_file import ROUND, DatasetError, episode_file, read_episode, write_episode
from data_collection.files import write_atomically, writing
from data_collection.recipe_file import Lap, Recipe, encode_recipe, read_recipe
from data_collection.record import Row, add_missing, open_recording
from data_collection.verify import play_back
from data_collection.versions import SIMULATOR, installed_versions
from envs import EnvConfig


def save_recipe(dataset: Demonstrations, path: Path, *, workers: int = 1) -> None:
    """Write the recipe of `dataset` to the new file `path`. The same dataset gives the same bytes.

    workers: processes that check the dataset first, as `verify` does without a replay (`rebuild` is one).
    Raises FileExistsError for an existing file, WriteError when it cannot be written, and DatasetError for a dataset
    that is empty, unfinished or damaged.
    """
    if path.exists():
        raise FileExistsError(f"{path} already exists; choose another file.")
    if problems := dataset.verify(workers=workers):
        raise DatasetError(f"{problems[0]} ({len(problems)} problem(s) in {dataset.path}); record those laps again.")
    rows, control = dataset.rows, dataset.meta.env.control
    try:
        missing = set(range(len(rows))) - {row["index"] for row in rows}
        if missing:
            raise ValueError(f"its episode {min(missing)} is missing")
        laps = [Lap.of(*read_episode(dataset.path / row["file"], control)) for row in rows]
        recipe = Recipe(json.loads((dataset.path / "meta.json").read_text()), laps)
    except ValueError as error:
        raise DatasetError(f"{dataset.path} makes no recipe: {error}; record it to its end with --resume.") from error
    with writing(path):
        write_atomically(path, encode_recipe(recipe))


def rebuild(
    recipe_path: Path,
    path: Path,
    *,
    workers: int = 1,
    resume: bool = False,
    on_episode: Callable[[Row], None] | None = None,
) -> Demonstrations:
    """Drive the laps of a recipe again and store them in the dataset folder `path`: the original, bit for bit.

    workers, resume, on_episode: as in `record`. No lap is written that is not the recipe's.
    Raises DatasetError for a bad recipe, for a lap that comes out otherwise here (those before it are kept), and when
    `path` holds another lap (it is left alone); and what `record` raises of folders, disks and workers.
    """
    recipe = read_recipe(recipe_path)
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}.")
    if resume and not path.exists():
        raise DatasetError(f"nothing to resume at {path}: there is no such folder; start without --resume.")
    if resume and not Demonstrations.vacant(path):
        _require_laps_of(recipe, Demonstrations.open(path))
    dataset = open_recording(path, recipe.meta, [lap.summary["seed"] for lap in recipe.laps], resume=resume)
    lap = partial(_rebuild_lap, path, recipe.meta.env, recipe_path, _cause(recipe))
    add_missing(dataset, lap, enumerate(recipe.laps), workers, on_episode)
    return dataset


def _rebuild_lap(path: Path, env: EnvConfig, recipe_path: Path, cause: str, task: tuple[int, Lap]) -> Row:
    """Drive lap `task[1]` again as episode `task[0]` and write its file; returns its row."""
    index, lap = task
    seed = lap.summary["seed"]
    arrays, summary = play_back(env, seed, lap.label, lap.action)
    summary |= {name: lap.summary[name] for name in {ROUND} & lap.summary.keys()}
    if told := Lap.of(arrays, summary).differences(lap):
        raise DatasetError(
            f"lap {index} (track {seed}) of {recipe_path} comes out otherwise here: {', '.join(told)}; {cause}."
        )
    return write_episode(path, index, arrays, summary)


def _cause(recipe: Recipe) -> str:
    """Why a lap comes out otherwise, and the fix."""
    made, here = recipe.document.get("versions", {}), installed_versions()
    other = [name for name in SIMULATOR if name in made and made[name] != here.get(name)]
    if other:
        told = ", ".join(f"{name} {made[name]} (here {here.get(name, 'none')})" for name in other)
        return f"it was recorded with {told}: install that and go on with --resume"
    return "the versions are the same, so the recipe was changed or its processor was another: fetch or record it again"


def _require_laps_of(recipe: Recipe, dataset: Demonstrations) -> None:
    """Raises DatasetError unless every whole lap in `dataset`, also one without a row, is the recipe's."""
    dataset.require_meta(recipe.meta)
    laps = dict(enumerate(recipe.laps))
    for index in sorted(laps.keys() | {row["index"] for row in dataset.rows}):
        try:
            found = Lap.of(*read_episode(dataset.path / episode_file(index), recipe.meta.env.control))
        except DatasetError:  # missing or damaged: it will be driven again
            continue
        told = found.differences(laps[index]) if index in laps else ["there is none in the recipe"]
        if told:
            raise DatasetError(
                f"cannot resume {dataset.path}: its episode {index} is not the recipe's ({', '.join(told)}); "
                "rebuild into another folder."
            )
