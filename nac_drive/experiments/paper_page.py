"""The page of a reproduction: printed and measured figures beside each other, and one sentence about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nac_drive.evaluation.intervals import rank_correlation
from nac_drive.evaluation.metric import EMPTY
from nac_drive.experiments.paper import PaperExperiment, ResultColumn, Row
from nac_drive.experiments.protocol import Protocol
from nac_drive.markdown import markdown_table, number_text
from nac_drive.storage.write import write_atomically

_LEAST = 5
"""Lines of a table whose order can be compared."""


def save_page(path: Path, protocol: Protocol, experiment: PaperExperiment, rows: Sequence[Row], command: str) -> Path:
    """Write the page in Markdown.

    Args:
        path: The new file; an existing one is replaced.
        protocol: The table.
        experiment: How it was measured.
        rows: The results so far.
        command: The command that made them.

    Returns:
        The page.
    """
    columns = experiment.columns()
    by_entry = {entry.name: [row for row in rows if row["entry"] == entry.name] for entry in protocol.entries}
    printed = [column for column in columns if any(column.key in entry.printed for entry in protocol.entries)]
    headings = ["printed as", "core"]
    for column in columns:
        headings += [f"{column.heading}, printed"] * (column in printed) + [column.heading]
    rows_of_table = []
    for entry in protocol.entries:
        cells = [entry.name, f"`{entry.core}`"]
        for column in columns:
            if column in printed:
                cells.append(f"{entry.printed[column.key]:,.{column.digits}f}" if column.key in entry.printed else "")
            cells.append(_cell(column, by_entry[entry.name], experiment.repeats))
        rows_of_table.append(cells)
    verdicts = [sentence for column in printed if (sentence := verdict(protocol, column, by_entry))]
    parts = [
        f"# {protocol.title}", f"{protocol.source}.", f"    {command}", experiment.describe(),
        f"**What differs from the paper.** {protocol.differs.strip()}", markdown_table(headings, rows_of_table, "ll"),
        *verdicts, experiment.conclude(path.parent, rows),
    ]  # fmt: skip
    write_atomically(path, ("\n\n".join(part for part in parts if part) + "\n").encode())
    return path


def _cell(column: ResultColumn, rows: Sequence[Row], repeats: str) -> str:
    """Return the mean ± sd, and of how many rows where some have no value; "-" if none has, nothing without rows."""
    values, rows = column.values(rows), column.counted(rows)
    if not len(values):
        return EMPTY if rows else ""
    spec = f",.{column.digits}f"
    text = number_text(float(values.mean()), spec)
    deviation = number_text(float(values.std(ddof=1)), spec) if np.ptp(values) > 0 else ""
    text += f" ± {deviation}" if deviation.strip("0.") else ""
    some = column.of is None and len(values) < len(rows)
    return f"{text} ({len(values)} of {len(rows)} {repeats})" if some else text


def verdict(protocol: Protocol, column: ResultColumn, by_entry: dict[str, list[Row]]) -> str:
    """Return one sentence: whether the printed order is found again; empty for too few lines.

    The rank correlation is Spearman's; its interval is the 95 % bootstrap interval over lines.
    """
    pairs = [
        (entry.printed[column.key], column.values(by_entry[entry.name]).mean())
        for entry in protocol.entries
        if column.key in entry.printed and len(column.values(by_entry[entry.name]))
    ]
    if len(pairs) < _LEAST:
        return ""
    rho = rank_correlation(np.array(pairs).T)
    order = "is neither found again nor refuted"
    if rho.low > 0 or rho.high < 0:
        order = "is found again" if rho.low > 0 else "is turned round"
    return (
        f"**{column.heading}:** the printed order {order}: rank correlation {rho.text('.2f')} over {len(pairs)} lines."
    )
