"""The page of a reproduction: printed and measured figures beside each other, and one sentence about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from nac_drive.evaluation.metrics import EMPTY
from nac_drive.reproduce.experiment import Column, Experiment, Row
from nac_drive.reproduce.protocol import Reproduction
from nac_drive.storage.write import write_atomically

_RESAMPLES = 2000
_LEAST = 5
"""Lines of a table whose order can be compared."""


def save_page(
    path: Path, reproduction: Reproduction, experiment: Experiment, rows: Sequence[Row], command: str
) -> Path:
    """Write the page in Markdown.

    Args:
        path: The new file; an existing one is replaced.
        reproduction: The table.
        experiment: How it was measured.
        rows: The results so far.
        command: The command that made them.

    Returns:
        The page.
    """
    columns = experiment.columns()
    by_entry = {entry.name: [row for row in rows if row["entry"] == entry.name] for entry in reproduction.entries}
    printed = [column for column in columns if any(column.key in entry.printed for entry in reproduction.entries)]
    headings = ["printed as", "core"]
    for column in columns:
        headings += [f"{column.heading}, printed"] * (column in printed) + [column.heading]
    lines = [f"| {' | '.join(headings)} |", "|---|---|" + "---:|" * (len(headings) - 2)]
    for entry in reproduction.entries:
        cells = [entry.name, f"`{entry.core}`"]
        for column in columns:
            if column in printed:
                cells.append(f"{entry.printed[column.key]:,.{column.digits}f}" if column.key in entry.printed else "")
            cells.append(_cell(column, by_entry[entry.name], experiment.repeats))
        lines.append(f"| {' | '.join(cells)} |")
    verdicts = [sentence for column in printed if (sentence := verdict(reproduction, column, by_entry))]
    parts = [
        f"# {reproduction.title}", f"{reproduction.source}.", f"    {command}", experiment.describe(),
        f"**What differs from the paper.** {reproduction.differs.strip()}", "\n".join(lines),
        *verdicts, experiment.conclude(path.parent, rows),
    ]  # fmt: skip
    write_atomically(path, ("\n\n".join(part for part in parts if part) + "\n").encode())
    return path


def _cell(column: Column, rows: Sequence[Row], repeats: str) -> str:
    """Return the mean ± sd, and of how many rows where some have no value; "-" if none has, nothing without rows."""
    values, rows = column.values(rows), column.counted(rows)
    if not len(values):
        return EMPTY if rows else ""
    text = f"{values.mean():,.{column.digits}f}"
    if np.ptp(values) > 0:
        text += f" ± {values.std(ddof=1):,.{column.digits}f}"
    some = column.of is None and len(values) < len(rows)
    return f"{text} ({len(values)} of {len(rows)} {repeats})" if some else text


def verdict(reproduction: Reproduction, column: Column, by_entry: dict[str, list[Row]]) -> str:
    """Return one sentence: whether the printed order is found again; empty for too few lines.

    The rank correlation is Spearman's; its interval is the 95 % bootstrap interval over lines.
    """
    pairs = [
        (entry.printed[column.key], column.values(by_entry[entry.name]).mean())
        for entry in reproduction.entries
        if column.key in entry.printed and len(column.values(by_entry[entry.name]))
    ]
    if len(pairs) < _LEAST:
        return ""
    theirs, ours = np.array(pairs).T
    rho = rank_correlation(theirs, ours)
    drawn = np.random.default_rng(0).integers(len(pairs), size=(_RESAMPLES, len(pairs)))
    low, high = np.nanquantile(rank_correlation(theirs[drawn], ours[drawn]), [0.025, 0.975])
    found = "is found again" if low > 0 else "is turned round" if high < 0 else "is neither found again nor refuted"
    return (
        f"**{column.heading}:** the printed order {found}: rank correlation {rho:.2f} [{low:.2f}, {high:.2f}] over "
        f"{len(pairs)} lines."
    )


def rank_correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return Spearman's rank correlation along the last axis; NaN where all values of a side are equal."""
    ranks = [rankdata(each, axis=-1) for each in (a, b)]
    a, b = (each - each.mean(axis=-1, keepdims=True) for each in ranks)
    with np.errstate(invalid="ignore"):
        return (a * b).sum(axis=-1) / np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
