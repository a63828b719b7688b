"""The command that checks what a user brings."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional

import nac_drive as nd


@dataclass(frozen=True)
class CheckEnvironment:
    """See what an environment brings and what it lacks."""

    environment: Positional[str]
    """The id, such as racetrack-v1 or MODULE:ID."""

    def run(self, console: Console) -> None:
        """Drive random actions and print the findings."""
        from nac_drive.plugins import load_plugin

        module, _, name = self.environment.rpartition(":")
        if module:
            load_plugin(module)
        check = nd.check_environment(name)
        table = Table(title=name)
        for heading in ("", "found", "to add it"):
            table.add_column(heading, overflow="fold")
        for finding in check.findings:
            table.add_row(finding.topic, finding.found, finding.fix)
        console.print(table)
        console.print(check.verdict, highlight=False)
