"""Write the standing table of docs/challenge.md.

It is made of the results in docs/runs/challenge.

python benchmarks/challenge.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nac_drive.experiments.challenge_result import ChallengeResult, digest_of, read_challenge, table_row
from nac_drive.markdown import markdown_table

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "challenge.md", ROOT / "docs" / "runs" / "challenge"
LOST = 800
"""A return below it is a lap that went wrong."""
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->"


def results(folder: Path = RESULTS) -> list[ChallengeResult]:
    """Return the results, the best score first.

    Raises:
        ValueError: A result was changed.
    """
    by_path = {path: read_challenge(path) for path in sorted(folder.glob("*.json"))}
    for path, result in by_path.items():
        if digest_of(result) != result.sha256 or result.table != [table_row(world) for world in result.worlds]:
            raise ValueError(f"{path} was changed; measure it again.")
    return sorted(by_path.values(), key=lambda result: -result.score)


def table(standing: list[ChallengeResult]) -> str:
    """Return the standing table in Markdown."""
    worlds = [row.name for row in standing[0].table]
    headings = ["driver", "view", "control", "tracks", "score", *worlds, f"under {LOST}, %", "least"]
    rows = [
        [
            result.driver.name, str(result.driver.env["view"]), str(result.driver.env["control"]),
            f"{len(result.seeds):,}", f"{result.score:.1f}",
            *(f"{row.mean:.0f} ± {row.half_width:.0f}" for row in result.table),
            f"{100 * np.mean([value < LOST for world in result.worlds for value in world.returns]):.1f}",
            f"{min(row.minimum for row in result.table):.0f}",
        ]
        for result in standing
    ]  # fmt: skip
    return markdown_table(headings, rows, "lll")


def main() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(results())}\n\n{END}{after}")


if __name__ == "__main__":
    main()
