"""The ranking of a comparison, one perturbation at a time.

    python benchmarks/protocols/worlds.py runs/lead runs/lead-clockless --dataset broken
    python benchmarks/protocols/worlds.py runs/lead --seat runs/lead-seat --dataset broken --page docs/leaderboard.md

A dataset that was recorded under several perturbations in turn is compared under all of them in turn: track n is under
number n modulo their count. The table has one column for each: mean return over runs and tracks, and in brackets the
paired difference from the baseline (lstm, if it takes part; else the first driver) with its 95 % bootstrap interval
over tracks and runs. A star marks a difference by the rule of `compare` (docs/metrics.md): the interval leaves zero
out, and so does the test with Holm's correction for all drivers of the column. A run that is not finished is left out.
Several folders are one table, over the tracks that all drivers drove; a driver that an earlier folder has, too, is
marked by the folder's name. A group has its best driver, and the drivers behind it down to the first that interval and
test, without a correction, tell apart from it.

--again names, for each folder in turn, a comparison of its finished runs on further tracks: the driver lstm-0 there is
run 0 of lstm. Drivers that are not there are left out.

--seat names comparisons of the same drivers from the driver's seat (`nac-drive compare --view seat`). Their worlds are
further columns. --page writes the table between the marks of a page.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import friedmanchisquare

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.evaluation.verdict import Verdict, corrected, paired
from nac_drive.experiments.compare import BASELINE
from nac_drive.experiments.driving import EXPERT
from nac_drive.markdown import markdown_table
from nac_drive.storage.style import family_of

WORDS = {
    "gap:0": "undisturbed", "frame-drop:3:zero+frame-rate:3": "irregular", "action-delay:4+frame-drop:3:zero": "late",
    "blackouts:2": "blackouts",
}  # fmt: skip
"""Perturbations by the names of docs/robustness.md."""
LEADER = "nac-sharp"
"""The driver whose lead is printed where nobody names one."""
ALL = "all"
"""The column of all tracks."""
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->"
"""The marks of a page's table."""

Returns = dict[str, dict[int, list[float]]]
"""Driver -> track -> return of every run. From the seat, track n is ~n, a negative number."""


def returns_of(folder: Path, *, seat: bool = False) -> Returns:
    """Return the returns of every driver of a comparison, from its runs that drove as many tracks as any."""
    runs: dict[str, dict[int | None, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in (folder / "rows.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row.get("trial") is None:  # a trial of the tuning is no episode
            track = ~row["seed"] if seat else row["seed"]
            runs[row["driver"]][row.get("run")][track] = row["episode_return"]
    tracks = max(len(run) for of_driver in runs.values() for run in of_driver.values())
    returns: Returns = {}
    for driver, of_driver in runs.items():
        whole = [run for _, run in sorted(of_driver.items(), key=lambda run: run[0] or 0) if len(run) == tracks]
        if whole:
            returns[driver] = {track: [run[track] for run in whole] for track in whole[0]}
    return returns


def merged(folders: Sequence[Path], again: Sequence[Path] = (), *, seat: bool = False) -> Returns:
    """Return the drivers of several folders.

    A driver that an earlier folder has, too, is marked by the folder's name.
    """
    returns: Returns = {}
    for folder, further in zip_longest(folders, again):
        first = returns_of(folder, seat=seat)
        for driver, driven in (on_further_tracks(first, returns_of(further)) if further else first).items():
            if returns.get(driver) != driven:  # an expert drives as before
                returns[f"{driver} ({folder.name})" if driver in returns else driver] = driven
    return returns


def on_further_tracks(returns: Returns, again: Returns) -> Returns:
    """Return drivers with the tracks that their runs drove again.

    In `again` every run is a driver of its own. A driver that is not there is left out.

    Raises:
        ValueError: Other runs drove again than at first.
    """
    further: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for name, driven in again.items():
        driver, _, run = (name, "", "0") if name in returns else name.rpartition("-")
        for track, (value, *_) in driven.items() if run.isdigit() else ():
            further[driver][track][int(run)] = value
    both: Returns = {}
    for driver in [driver for driver in returns if driver in further]:
        driven = returns[driver]
        more = {track: [runs[number] for number in sorted(runs)] for track, runs in further[driver].items()}
        both[driver] = {**driven, **more}
        if len({len(values) for values in both[driver].values()}) > 1:
            raise ValueError(f"--again must hold every run of {driver}; drive them with compare.")
    return both


def with_seat(returns: Returns, seat: Returns) -> Returns:
    """Return the drivers that drove in both views, with the tracks of both and the runs that both have."""
    both: Returns = {}
    for driver in returns:
        if driver in seat:
            tracks = {**returns[driver], **seat[driver]}
            runs = min(len(values) for values in tracks.values())
            both[driver] = {track: values[:runs] for track, values in tracks.items()}
    return both


def grid(returns: dict[int, list[float]], tracks: list[int]) -> np.ndarray:
    """Return the returns of every run on every track, (runs, tracks)."""
    return np.array([returns[track] for track in tracks]).T


def by_mean(returns: Returns) -> list[str]:
    """Return the drivers, the best mean first."""
    return sorted(returns, key=lambda name: -np.mean([np.mean(each) for each in returns[name].values()]))


def baseline_of(returns: Returns) -> str:
    return BASELINE if BASELINE in returns else next(iter(returns))


def verdicts(returns: Returns, pairs: Iterable[tuple[str, str]], tracks: list[int]) -> list[Verdict]:
    """Return the verdicts on pairs of drivers, corrected together."""
    return corrected([paired(grid(returns[name], tracks), grid(returns[other], tracks)) for name, other in pairs])


def difference_text(verdict: Verdict) -> str:
    """Return the difference, with a star if it is one."""
    return f"{verdict.difference.text('+.0f')}{' *' if verdict.apart else ''}"


def from_baseline(returns: Returns, specs: list[str]) -> dict[str, dict[str, Verdict]]:
    """Return the verdicts on all but the baseline, by column."""
    baseline = baseline_of(returns)
    others = [driver for driver in returns if driver != baseline]
    return {
        column: dict(zip(others, verdicts(returns, ((other, baseline) for other in others), tracks), strict=True))
        for column, tracks in columns_of(returns[baseline], specs).items()
    }


def groups_of(returns: Returns) -> dict[str, int]:
    """Return the number of every driver's group, from 1.

    A group has its best driver, and the ones behind it down to the first that is told apart from it.
    """
    numbers, best, number = {}, "", 0
    tracks = sorted(next(iter(returns.values())))
    for name in by_mean(returns):
        if not best or paired(grid(returns[best], tracks), grid(returns[name], tracks)).apart:
            best, number = name, number + 1
        numbers[name] = number
    return numbers


def table(returns: Returns, specs: list[str], differences: dict[str, dict[str, Verdict]]) -> str:
    """Return the ranking in Markdown, with differences of `from_baseline`."""
    columns, groups = columns_of(returns[baseline_of(returns)], specs), groups_of(returns)
    rows = []
    for driver in by_mean(returns):
        cells = []
        for column, tracks in columns.items():
            cell = f"{grid(returns[driver], tracks).mean():.0f}"
            verdict = differences[column].get(driver)
            cells.append(f"{cell} ({difference_text(verdict)})" if verdict else cell)
        runs = len(next(iter(returns[driver].values())))
        family = EXPERT if driver == EXPERT else family_of(driver)
        rows.append([str(groups[driver]), driver, family, str(runs), *cells])
    words = [WORDS.get(column, column) for column in columns]
    return markdown_table(["group", "driver", "family", "runs", *words], rows, "rll")


def places_of(tracks: Iterable[int], specs: list[str]) -> dict[str, list[int]]:
    """Return the tracks under every specification that has any."""
    tracks = sorted(tracks, key=abs)
    above = {spec: [t for t in tracks if t >= 0 and t % len(specs) == i] for i, spec in enumerate(specs)}
    seat = {f"{spec}, seat": [t for t in tracks if t < 0 and ~t % len(specs) == i] for i, spec in enumerate(specs)}
    return {spec: under for spec, under in {**above, **seat}.items() if under}


def columns_of(tracks: Iterable[int], specs: list[str]) -> dict[str, list[int]]:
    """Return the tracks under every specification, and all of them."""
    tracks = sorted(tracks)
    return {**places_of(tracks, specs), ALL: tracks}


def run_means(returns: Returns, specs: list[str]) -> dict[str, list[NDArray[np.float64]]]:
    """Return the means of the runs of drivers with several.

    There is one for every specification, and one for all of them.
    """
    means = {}
    for driver, of_driver in returns.items():
        worlds = columns_of(of_driver, specs).values()
        if len(next(iter(of_driver.values()))) > 1:
            means[driver] = [grid(of_driver, tracks).mean(axis=1) for tracks in worlds]
    return means


def spread(means: dict[str, list[NDArray[np.float64]]]) -> dict[str, list[float]]:
    """Return the standard deviation over the runs of every driver, see `run_means`."""
    return {driver: [float(world.std(ddof=1)) for world in worlds] for driver, worlds in means.items()}


def shared_luck(means: dict[str, list[NDArray[np.float64]]]) -> str:
    """Return Friedman's test of the seeds as text.

    There is a p-value a world: a small one says that drivers agree on which seeds are good ones. Drivers with as many
    runs as any count; empty for fewer than three drivers or runs.
    """
    most = max(len(worlds[0]) for worlds in means.values())
    grids = np.array([worlds for worlds in means.values() if len(worlds[0]) == most])  # drivers, worlds, runs
    if len(grids) < 3 or most < 3:
        return ""
    p_values = (friedmanchisquare(*grids[:, world].T).pvalue for world in range(grids.shape[1]))
    return f"{len(grids)} drivers with {most} runs: p = {', '.join(f'{value:.2g}' for value in p_values)}"


def leads(returns: Returns, leader: str, specs: list[str]) -> str:
    """Return the lead of a driver in Markdown.

    There is a line for every other driver. The last column has all worlds but the first.
    """
    columns = columns_of(returns[leader], specs)
    columns["broken"] = [track for track in columns.pop(ALL) if (track if track >= 0 else ~track) % len(specs)]
    others = sorted(returns.keys() - {leader})
    differences = [
        map(difference_text, verdicts(returns, ((leader, other) for other in others), tracks))
        for tracks in columns.values()
        if tracks
    ]
    words = [WORDS.get(column, column) for column, tracks in columns.items() if tracks]
    return markdown_table([f"{leader} ahead of", *words], [*zip(others, *differences, strict=True)], "l")


def main() -> None:
    parser = argparse.ArgumentParser(description="A comparison, one perturbation at a time.")
    parser.add_argument("folders", nargs="+", type=Path, help="folders of nac-drive compare")
    parser.add_argument("--dataset", type=Path, required=True, help="the dataset, which names the perturbations")
    parser.add_argument("--driver", help=f"the driver whose lead is printed (default: {LEADER}, if it takes part)")
    parser.add_argument("--again", type=Path, nargs="+", default=(), help="for each folder, one of further tracks")
    parser.add_argument("--seat", type=Path, nargs="+", help="folders of the same drivers from the driver's seat")
    parser.add_argument("--page", type=Path, help="a page of Markdown to write the table into")
    options = parser.parse_args()
    specs = (Demonstrations.open(options.dataset).meta.env.perturb or "").split(",")
    if len(options.again) not in (0, len(options.folders)):
        parser.error(f"--again must name {len(options.folders)} folders, as many as there are comparisons")
    returns = merged(options.folders, options.again)
    if options.seat is not None:
        returns = with_seat(returns, merged(options.seat, seat=True))
    if options.driver not in (None, *returns):
        parser.error(f"--driver must be one of {', '.join(returns)}, got {options.driver!r}")
    common = set.intersection(*(set(tracks) for tracks in returns.values()))
    returns = {driver: {track: tracks[track] for track in common} for driver, tracks in returns.items()}
    differences = from_baseline(returns, specs)
    text = table(returns, specs, differences)
    print(text)
    if options.page is not None:
        before, _, rest = options.page.read_text().partition(BEGIN)
        options.page.write_text(f"{before}{BEGIN}\n{text}\n\n{END}{rest.partition(END)[2]}")
    apart = [verdict.apart for verdict in differences[ALL].values()]
    print(f"\n{sum(apart)} of {len(apart)} drivers differ from {baseline_of(returns)} over all tracks.")
    leader = options.driver or LEADER
    if leader in returns:
        print(f"\n{leads(returns, leader, specs)}")
    if means := run_means(returns, specs):
        worlds = columns_of(common, specs)
        print("\nmean of every run:")
        for driver, of_driver in means.items():
            listed = (" ".join(f"{mean:.0f}" for mean in of_world) for of_world in of_driver)
            print(f"{driver}:", ", ".join(f"{world} {runs}" for world, runs in zip(worlds, listed, strict=True)))
        medians = np.median(list(spread(means).values()), axis=0)
        print(
            "\nmedian standard deviation over runs:",
            ", ".join(f"{world} {median:.0f}" for world, median in zip(worlds, medians, strict=True)),
        )
        if luck := shared_luck(means):
            print(f"\nwhether a seed is luck that drivers share (Friedman's test), in these worlds: {luck}")


if __name__ == "__main__":
    main()
