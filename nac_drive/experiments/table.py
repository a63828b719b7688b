"""A table of results: one form for the terminal, for Markdown and for a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table as TerminalTable
from rich.text import Text

from nac_drive.evaluation.metric import EMPTY, TableColumn
from nac_drive.markdown import markdown_table
from nac_drive.notebook import paragraph
from nac_drive.notebook import table as html_table
from nac_drive.storage.names import markdown

_FRAME = 3
"""Characters around a cell: two spaces and a line."""
_LEAST_NAME = 8
"""Characters of a column of names, however narrow the terminal is."""


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

    def terminal(self, title: str) -> TerminalTables:
        """Return the table for a terminal, with its legend."""
        return TerminalTables(self, title)


@dataclass(frozen=True)
class TerminalTables:
    """A table within the width of a terminal.

    Columns that do not fit follow in further tables, each with all names. No number is cut: half of one reads as
    another. Long names are folded.
    """

    table: Table
    title: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[TerminalTable | Text]:
        yield from self.within(options.max_width)
        if self.table.legend:
            yield Text(self.table.legend, style="table.caption")

    def within(self, width: int) -> Iterator[TerminalTable]:
        """Yield tables of at most so many characters."""
        sizes, names = self._sizes(width), self.table.names
        start = sum(size + _FRAME for size in sizes[:names]) + 1
        blocks: list[list[int]] = [[]]
        used = start
        for number, size in enumerate(sizes[names:], start=names):
            if blocks[-1] and used + size + _FRAME > width:
                blocks.append([])
                used = start
            blocks[-1].append(number)
            used += size + _FRAME
        for block in blocks:
            shown = TerminalTable(title=self.title if block is blocks[0] else None)
            places = [*range(len(sizes[:names])), *block]
            for place in places:
                justify = "left" if place < names else "right"
                shown.add_column(self.table.headings[place], justify=justify, width=sizes[place], overflow="fold")
            for row in self.table.rows:
                shown.add_row(*(row[place] for place in places))
            yield shown

    def _sizes(self, width: int) -> list[int]:
        """Return the characters of every column.

        Headings break at words, and names anywhere, where they must.
        """
        columns = [
            (heading, [*map(cell_len, cells)])
            for heading, *cells in zip(self.table.headings, *self.table.rows, strict=True)
        ]
        whole = [max(cell_len(heading), *sizes, 0) for heading, sizes in columns]
        if sum(size + _FRAME for size in whole) < width:
            return whole
        least = [max(*map(cell_len, heading.split()), *sizes, 0) for heading, sizes in columns]
        names = self.table.names
        room = (width - 1 - max(least[names:], default=0) - _FRAME) // names - _FRAME
        return [*(min(size, max(room, _LEAST_NAME)) for size in least[:names]), *least[names:]]
