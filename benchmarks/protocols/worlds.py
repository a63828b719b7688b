"""The ranking of a comparison, one perturbation at a time.

    python benchmarks/protocols/worlds.py runs/lead runs/lead-clockless --dataset broken
    python benchmarks/protocols/worlds.py runs/lead --seat runs/lead-seat --dataset broken

A dataset that was recorded under several perturbations in turn is compared under all of them in turn: track n is under
number n modulo their count. The table has one column for each: mean return over runs and tracks, and below it the
paired difference from the baseline (lstm, if it takes part; else the first driver) with its 95 % bootstrap interval
over tracks and runs. Several folders are one table, over the tracks that all drivers drove; the drivers of later ones
are marked by the folder's name.

--seat names a comparison of the same drivers from the driver's seat (`nac-drive compare --view seat`). Its worlds are
further columns.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nac_drive.data_collection.dataset.demonstrations import Demonstrations
from nac_drive.evaluation.intervals import bootstrap
from nac_drive.experiments.compare import BASELINE

Returns = dict[str, dict[int, list[float]]]
"""Driver -> track -> return of every run. From the seat, track n is ~n, a negative number."""


def returns_of(folder: Path, mark: str = "", *, seat: bool = False) -> Returns:
    """Return the returns of every driver of a comparison."""
    found: Returns = defaultdict(lambda: defaultdict(list))
    for line in (folder / "rows.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row.get("trial") is None:  # a trial of the tuning is no episode
            found[row["driver"] + mark][~row["seed"] if seat else row["seed"]].append(row["episode_return"])
    return found


def with_seat(returns: Returns, seat: Returns) -> Returns:
    """Return the drivers that drove in both views, with the tracks of both."""
    return {driver: {**returns[driver], **seat[driver]} for driver in returns if driver in seat}


def grid(returns: dict[int, list[float]], tracks: list[int]) -> np.ndarray:
    """Return the returns of every run on every track, (runs, tracks)."""
    return np.array([returns[track] for track in tracks]).T


def table(returns: Returns, specs: list[str]) -> str:
    """Return the ranking under every specification, in Markdown."""
    baseline = BASELINE if BASELINE in returns else next(iter(returns))
    places = places_of(returns[baseline], specs)
    lines = [f"| driver | runs | {' | '.join(places)} | all |", "|---|---:|" + "---:|" * (len(places) + 1)]
    mean = {driver: np.mean([np.mean(each) for each in found.values()]) for driver, found in returns.items()}
    for driver in sorted(returns, key=lambda name: -mean[name]):
        cells = []
        for tracks in [*places.values(), sorted(returns[baseline])]:
            own = grid(returns[driver], tracks)
            cell = f"{own.mean():.0f}"
            if driver != baseline:
                versus = bootstrap(own, grid(returns[baseline], tracks))
                cell += f" ({versus.text('+.0f')})"
            cells.append(cell)
        runs = len(next(iter(returns[driver].values())))
        lines.append(f"| {driver} | {runs} | {' | '.join(cells)} |")
    return "\n".join(lines)


def places_of(tracks: Iterable[int], specs: list[str]) -> dict[str, list[int]]:
    """Return the tracks under every specification that has any."""
    tracks = sorted(tracks, key=abs)
    above = {spec: [t for t in tracks if t >= 0 and t % len(specs) == i] for i, spec in enumerate(specs)}
    seat = {f"{spec}, seat": [t for t in tracks if t < 0 and ~t % len(specs) == i] for i, spec in enumerate(specs)}
    return {spec: under for spec, under in {**above, **seat}.items() if under}


def spread(returns: Returns, specs: list[str]) -> dict[str, list[float]]:
    """Return the standard deviation over the runs of every driver, under every specification and under all."""
    found = {}
    for driver, own in returns.items():
        whole = grid(own, sorted(own))
        if len(whole) > 1:
            parts = [grid(own, tracks) for tracks in places_of(own, specs).values()]
            found[driver] = [float(part.mean(axis=1).std(ddof=1)) for part in (*parts, whole)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="A comparison, one perturbation at a time.")
    parser.add_argument("folders", nargs="+", type=Path, help="folders of nac-drive compare")
    parser.add_argument("--dataset", type=Path, required=True, help="the dataset, which names the perturbations")
    parser.add_argument("--driver", default="nac-sharp", help="the driver whose lead is printed (default: %(default)s)")
    parser.add_argument("--seat", type=Path, help="the folder of the same comparison from the driver's seat")
    options = parser.parse_args()
    specs = (Demonstrations.open(options.dataset).meta.env.perturb or "").split(",")
    returns: Returns = {}
    for number, folder in enumerate(options.folders):
        returns |= returns_of(folder, f" ({folder.name})" if number else "")
    if options.seat is not None:
        returns = with_seat(returns, returns_of(options.seat, seat=True))
    common = set.intersection(*(set(found) for found in returns.values()))
    returns = {driver: {track: found[track] for track in common} for driver, found in returns.items()}
    print(table(returns, specs))
    tracks = [track for track in sorted(returns[options.driver]) if (track if track >= 0 else ~track) % len(specs)]
    if not tracks:
        return
    print(f"\n{options.driver} ahead of each, without tracks of {specs[0]}:")
    for other in sorted(returns.keys() - {options.driver}):
        lead = bootstrap(grid(returns[options.driver], tracks), grid(returns[other], tracks))
        print(f"{other}: {lead.text('+.0f')}")
    spreads = spread(returns, specs)
    if spreads:
        medians = np.median(list(spreads.values()), axis=0)
        print(
            "\nmedian standard deviation over runs:",
            ", ".join(f"{s} {m:.0f}" for s, m in zip([*places_of(common, specs), "all"], medians, strict=True)),
        )


if __name__ == "__main__":
    main()
