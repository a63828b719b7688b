"""Protocols of reproductions: the files `protocols/NAME.yaml`, which are data alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from nac_drive.policies import CORES
from nac_drive.storage.read import read_yaml
from nac_drive.suggest import did_you_mean

PROTOCOLS = Path(str(files("nac_drive.experiments"))) / "protocols"
"""Folder of the protocols that come with the package."""


def names_in(protocols: Path) -> tuple[str, ...]:
    """Return the names of the tables of a folder of protocols."""
    return tuple(sorted(path.stem for path in protocols.glob("*.yaml")))


REPRODUCTIONS: tuple[str, ...] = names_in(PROTOCOLS)
"""Names of the tables that the package measures again."""
SCRIPTED = {
    "nac-fig4": "NAC paper, Figure 4: cells of NAC-Steady along the road",
    "nac-fig6": "NAC paper, Figure 6: saliency maps, from the driver's seat",
    "thesis-4.1": "Thesis, Table 4.1: maximum flow of the tap-withdrawal circuit and of random circuits",
    "thesis-4.4": "Thesis, Tables 4.2 and 4.4: ordinary neural circuits, trained without gradients",
    "thesis-6.3": "Thesis, Figure 6.3 and Table 6.5: learning curves and where training stops",
    "thesis-6.4bc": (
        "Thesis, Figures 6.4b to 6.8: saliency under noise, steepness, components and neurons on the track"
    ),
    "thesis-7": "Thesis, Chapter 7: responses of single cells",
    "thesis-9.2": "Thesis, Fig. 9.2: trajectory length of random networks",
}
"""Name and title of what a script of the repository measures again, `benchmarks/papers/reproduce.py`."""


@dataclass(frozen=True)
class FullEntry:
    """The changes of a line for `full`."""

    args: dict[str, float | int | str | bool] = field(default_factory=dict)
    """Settings of the core."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the experiment."""


@dataclass(frozen=True)
class PaperEntry:
    """One line of a table."""

    name: str
    """The name that the paper prints."""
    core: str
    """Our core, a name in CORES."""
    args: dict[str, float | int | str | bool] = field(default_factory=dict)
    """Settings of the core."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the experiment that are others for this line, such as its learning rate."""
    printed: dict[str, float] = field(default_factory=dict)
    """Column of our results -> the figure that the paper prints."""
    full: FullEntry = field(default_factory=FullEntry)
    """Settings that `full` changes: the size of the paper."""


@dataclass(frozen=True)
class Protocol:
    """A table of a paper, and how it is measured here."""

    title: str
    """Title of the page."""
    source: str
    """The paper and the place of the table."""
    experiment: str
    """The kind of measurement, a name in EXPERIMENTS."""
    differs: str
    """What differs from the paper's setting, in Markdown."""
    entries: list[PaperEntry]
    """The lines, in the order of the paper."""
    args: dict[str, float | int | str | bool] = field(default_factory=dict)
    """Settings of all cores that accept them."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the experiment, cut to what two cores do in about an hour."""
    full: dict[str, Any] = field(default_factory=dict)
    """Settings that `full` changes: the size of the paper."""

    def at_full_size(self) -> Protocol:
        """Return the protocol with the settings of `full`."""
        entries = [
            replace(entry, args=entry.args | entry.full.args, settings=entry.settings | entry.full.settings)
            for entry in self.entries
        ]
        return replace(self, settings=self.settings | self.full, entries=entries)

    def core_args(self, entry: PaperEntry) -> dict[str, Any]:
        """Return the settings of an entry's core: its own, and the settings of all that it accepts."""
        common = {key: value for key, value in self.args.items() if key in CORES[entry.core].accepted}
        return common | entry.args


def load(name: str, protocols: Path = PROTOCOLS) -> Protocol:
    """Read a protocol.

    Args:
        name: One of `names_in(protocols)`.
        protocols: The folder of the protocols.

    Raises:
        ValueError: For another name.
    """
    if name in (names := names_in(protocols)):
        return read_yaml(protocols / f"{name}.yaml", Protocol, "a protocol", "install the package again")
    if name in SCRIPTED:
        raise ValueError(
            f"name must be a table that the package measures, got {name!r}; in a clone of the repository, run "
            f"`python benchmarks/papers/reproduce.py {name} --out {name}`."
        )
    raise ValueError(
        f"name must be one of {', '.join(names)}, got {name!r}.{did_you_mean(name, names)} `reproduce --help` says "
        "what each measures."
    )


def listed(protocols: Path = PROTOCOLS) -> str:
    """Return the name and the title of every table of a folder, a line each."""
    return lines({name: load(name, protocols).title for name in names_in(protocols)})


def lines(titles: Mapping[str, str]) -> str:
    """Return names and titles, a line each."""
    return "\n".join(f"- {name}: {title}" for name, title in titles.items())


def chosen(reproduction: Protocol, only: Sequence[str]) -> list[PaperEntry]:
    """Return the entries named by `only`, by the paper's name or our core; all of them for none.

    Raises:
        ValueError: If there is no such entry.
    """
    if not only:
        return reproduction.entries
    known = {name for entry in reproduction.entries for name in (entry.name, entry.core)}
    if unknown := [name for name in only if name not in known]:
        raise ValueError(
            f"only: there is no {unknown[0]!r} in this table; choose from "
            f"{', '.join(entry.name for entry in reproduction.entries)}.{did_you_mean(unknown[0], known)}"
        )
    return [entry for entry in reproduction.entries if {entry.name, entry.core} & set(only)]
