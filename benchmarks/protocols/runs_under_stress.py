"""A stress test of several runs per core as one table: returns, degradation, interventions, and the pulses of PDNA.

    nac-drive stress --drivers runs/gaps/{cfc,pdna-b,pdna-c,pdna-d,pdna-e}-{0,1,2,3,4} --perturb gap ... --out stress
    python benchmarks/protocols/runs_under_stress.py stress --baseline cfc --pulses runs/gaps

A driver NAME-N is run N of core NAME. Intervals are 95 % bootstrap intervals over runs and tracks; intervals of
differences are paired. With `--pulses`, the folder of the comparison, it reads the parameters of the trained pulses
(PDNA, sections 6.4 and 7.4) beside those at initialisation.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import nac_drive as nd
from nac_drive.evaluation.intervals import bootstrap, clearly_positive
from nac_drive.policies.cores.pdna import PDNA, Pulse

Cells = dict[tuple[str, str], dict[str, dict[tuple[int, int], float]]]
"""(core, perturbation) -> metric -> (run, track) -> value."""
METRICS = ("episode_return", "interventions")


def read(folder: Path) -> Cells:
    """Return the episodes of a stress test by core and perturbation."""
    found: Cells = defaultdict(lambda: defaultdict(dict))
    for line in (folder / "rows.jsonl").read_text().splitlines():
        row = json.loads(line)
        core, run = row["driver"].rsplit("-", 1)
        for metric in METRICS:
            found[core, row["perturbation"] or ""][metric][int(run), row["seed"]] = row[metric]
    return found


def grid(values: dict[tuple[int, int], float]) -> np.ndarray:
    """Return (runs, tracks)."""
    runs, tracks = (sorted({key[place] for key in values}) for place in (0, 1))
    return np.array([[values[run, track] for track in tracks] for run in runs])


def table(cells: Cells, metric: str, baseline: str) -> str:
    """Return means, and in brackets the paired difference from the baseline with its interval."""
    return _markdown(metric, {key: grid(values[metric]) for key, values in cells.items()}, baseline)


def degradation(cells: Cells, baseline: str) -> str:
    """Return the part of the own undisturbed return that is lost, in per cent (PDNA, Eq. 7): mean ± sd over runs.

    A core shows none unless the undisturbed return of each of its runs is clearly positive.
    """
    returns = {key: grid(values["episode_return"]) for key, values in cells.items()}
    lost = {
        (core, spec): 100 * (1 - own / returns[core, ""].mean(axis=1, keepdims=True))
        if all(map(clearly_positive, returns[core, ""]))
        else None
        for (core, spec), own in returns.items()
        if spec
    }
    return _markdown("lost, %", lost, baseline, sd=True)


def _markdown(title: str, grids: Mapping[tuple[str, str], np.ndarray | None], baseline: str, sd: bool = False) -> str:
    cores, specs = (list(dict.fromkeys(key[place] for key in grids)) for place in (0, 1))
    lines = [f"| {title} | {' | '.join(spec or 'none' for spec in specs)} |", "|---|" + "---:|" * len(specs)]
    for core in cores:
        entries = []
        for spec in specs:
            own, other = grids[core, spec], grids[baseline, spec]
            if own is None:
                entries.append("-")
                continue
            entry = f"{own.mean():.0f}" if sd else f"{own.mean():.3g}"
            if sd and len(own) > 1:
                entry += f" ± {own.mean(axis=1).std(ddof=1):.0f}"
            if core != baseline and other is not None:
                entry += f" ({bootstrap(own, other).text('+.3g')})"
            entries.append(entry)
        lines.append(f"| {core} | {' | '.join(entries)} |")
    return "\n".join(lines)


def pulses(folder: Path) -> str:
    """Return the parameters of the pulses of every trained run, and of a new one."""
    lines = ["| pulse | gate | gate * norm of A | median omega | omega above pi, of all |", "|---|---:|---:|---:|---:|"]
    rows: dict[str, list[Pulse]] = {"new": [Pulse(64)]}
    for path in sorted(folder.glob("pdna-*-[0-9]*")):
        core: Any = nd.load_driver(path).core
        if isinstance(core, PDNA) and core.pulse is not None:
            rows.setdefault(path.name.rsplit("-", 1)[0], []).append(core.pulse)
    for name, found in rows.items():
        gates = np.array([abs(pulse.gate.item()) for pulse in found])
        norms = np.array([pulse.amplitude.norm().item() for pulse in found])
        omegas = np.array([pulse.omega.detach().numpy() for pulse in found])  # (runs, d)
        lines.append(
            f"| {name}, {len(found)} | {_with_sd(gates)} | {_with_sd(gates * norms)} | "
            f"{np.median(omegas):.2f} | {(omegas > math.pi).mean():.2f} |"
        )
    return "\n".join(lines)


def _with_sd(values: np.ndarray) -> str:
    """Return the mean of runs, and their standard deviation."""
    return f"{values.mean():.3f}{f' ± {values.std(ddof=1):.3f}' if len(values) > 1 else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description="A stress test of several runs per core as one table.")
    parser.add_argument("folder", type=Path, help="folder of nac-drive stress")
    parser.add_argument("--baseline", default="lstm", help="the core that differences are from (default: %(default)s)")
    parser.add_argument("--pulses", type=Path, help="folder of nac-drive compare with PDNA drivers")
    options = parser.parse_args()
    cells = read(options.folder)
    for metric in METRICS:
        if any(any(values[metric].values()) for values in cells.values()):
            print(table(cells, metric, options.baseline) + "\n")
    print(degradation(cells, options.baseline))
    if options.pulses:
        print("\n" + pulses(options.pulses))


if __name__ == "__main__":
    main()
