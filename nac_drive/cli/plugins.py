"""Cores of the user on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from tyro.conf import Positional

from nac_drive.plugins import named_object
from nac_drive.policies import DriverConfig


@dataclass(frozen=True)
class CheckCore:
    """Check a sequence model of your own.

    It has to be causal, and must give the same outputs frame by frame.
    """

    core: Annotated[Positional[str], tyro.conf.arg(metavar="CORE")]
    """FILE.py:NAME or MODULE:NAME of a class of torch modules, or a name in CORES, with settings after a comma."""
    d_model: int = 64
    """Features in and out."""

    def run(self, console: Console) -> None:
        """Print the findings as a table."""
        from nac_drive.evaluation.metric import TableColumn
        from nac_drive.experiments.table import Table
        from nac_drive.policies.core_check import check_core, report_rows
        from nac_drive.training.config import core_settings

        name, *settings = named_core(self.core).split(",")
        reports = [check_core(name, self.d_model, self.d_model, **core_settings(settings))]
        reports += [check_core(other, self.d_model, self.d_model) for other in ("lstm", "nac-exact") if other != name]
        columns = [TableColumn(heading, str) for heading in ("", *(report.name for report in reports))]
        console.print(Table(columns, report_rows(reports)).terminal("Cores"))


def named_core(text: str) -> str:
    """Return the name of a typed core, with its settings.

    FILE.py:NAME is loaded.

    Raises:
        FileNotFoundError, ValueError: See `named_object`.
    """
    core, comma, settings = text.partition(",")
    return f"{named_object(core)}{comma}{settings}"


def describe_core(driver: DriverConfig, console: Console) -> None:
    """Check a core of the user, and print a line.

    Raises:
        ValueError: It cannot be a core.
    """
    from nac_drive.policies.cores.registry import CORES, SHIPPED

    if driver.core in CORES and driver.core not in SHIPPED:  # an unknown name is refused with the other settings
        from nac_drive.policies.core_check import check_core

        report = check_core(driver.core, driver.encoder_features, driver.d_model, **driver.core_args)
        console.print(str(report), highlight=False, soft_wrap=True)
