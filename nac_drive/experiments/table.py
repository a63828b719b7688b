"""A table of results: one form for the terminal, for Markdown and for a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from rich.table import Table as TerminalTable

from nac_drive.evaluation.metric import EMPTY, TableColumn
from nac_drive.markdown import markdown_table
from nac_drive.notebook import paragraph
from nac_drive.notebook import table as html_table
from nac_drive.storage.names import markdown


@dataclass(frozen=True)
class Table:
    """Texts of a table."""

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[str]]
    legend: str = ""
    """What the headings do not say, in one line."""
    names: int = 1
    """Columns at the left that hold names; the others hold numbers."""

    @classmethod
    def of(cls, columns: Sequence[TableColumn], items: Iterable[Any], legend: str = "", names: int = 1) -> Table:
        """Return the cells of some items, without the columns that no item fills."""
        rows = [[column.cell(item) for column in columns] for item in items]
        filled = [any(text != EMPTY for text in texts) for texts in zip(*rows, strict=True)]
        return cls(list(compress(columns, filled)), [list(compress(row, filled)) for row in rows], legend, names)

    @property
    def headings(self) -> list[str]:
        """Texts of the first line."""
        return [column.heading for column in self.columns]

    def markdown(self) -> str:
        """Return the table in Markdown, without its legend and without a line end."""
        rows = [[*map(markdown, row[: self.names]), *row[self.names :]] for row in self.rows]
        return markdown_table(self.headings, rows, "l" * self.names)

    def html(self) -> str:
        """Return the table and its legend for a notebook."""
        legend = paragraph(self.legend) if self.legend else ""
        return html_table(self.headings, self.rows, self.names) + legend

    def terminal(self, title: str) -> TerminalTable:
        """Return the table for a terminal, with its legend."""
        table = TerminalTable(title=title, caption=self.legend or None)
        for number, heading in enumerate(self.headings):
            table.add_column(heading, justify="left" if number < self.names else "right")
        for row in self.rows:
            table.add_row(*row)
        return table
