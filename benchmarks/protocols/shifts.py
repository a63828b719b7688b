"""Drivers under shifts, seen in training and not.

    python benchmarks/protocols/shifts.py runs/shifts --drivers champion robust-champion --tracks test-40
    python benchmarks/protocols/shifts.py runs/shifts --drivers champion robust-champion runs/mine --seen mine=cut-out

It is one `stress` in the folder, and goes on where it was cut off; drivers and tracks may have grown. The table has the
mean return with its 95 % bootstrap interval over tracks. A star marks what the driver met in training. The paper's
figures, means over 100 episodes, stand below.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import nac_drive as nd
from nac_drive.experiments.stress import StressResult
from nac_drive.markdown import markdown_table

PUBLISHED = ("published-colour:1", "published-bars:1", "published-blob:1", "published-noise:1")
OWN = (
    "colour:1", "colour:2", "colour:3", "occlusion-bars:1", "occlusion-bars:3", "occlusion-blobs:1",
    "occlusion-blobs:3", "gaussian-noise:3", "gap:1", "frame-rate:3", "action-delay:4",
)  # fmt: skip
_LOST = frozenset({"gaussian-noise", "frame-drop", "gap", "scattered-gaps", "frame-rate", "action-delay", "weak-tyres"})
_CHANGED = frozenset({"gaussian-noise", "random-convolution", "random-overlay", "cut-out", "random-erasing"})
SEEN = {
    "robust-champion": _LOST,
    "robust-expert": _CHANGED | {"weak-tyres"},
    "chroma-champion": _LOST | _CHANGED,
}
"""Shipped driver -> perturbations of its training (docs/robustness.md, docs/shifts.md); of the others, none."""
PAPER = (
    ("AttentionAgent", "914", "866", "900", "898", "-58"),
    ("world model", "-", "655", "166", "446", "-"),
    ("genetic algorithm", "-", "442", "675", "833", "-"),
    ("PPO", "-", "505", "615", "855", "-"),
)
"""Driver, undisturbed, colour, bars, blob, noise (Tang, Nguyen and Ha, 2020)."""


def table(result: StressResult, seen: Mapping[str, frozenset[str]]) -> str:
    """Return the returns, one line for each shift, in Markdown."""
    specs = [None, *dict.fromkeys(spec for family in result.families for spec in family.specs)]
    rows = []
    for spec in specs:
        cells = []
        for driver in result.drivers:
            star = "*" if spec and spec.split(":")[0] in seen.get(driver, ()) else ""
            cell = result.cells[driver, spec]
            cells.append(f"{cell.return_mean.text('.0f')}{star} ({cell.return_min:.0f})")
        rows.append((f"`{spec}`" if spec else "none", *cells))
    return markdown_table(("shift", *result.drivers), rows, "l" + "r" * len(result.drivers))


def paper() -> str:
    """Return the paper's figures, in Markdown."""
    return markdown_table(("driver", "none", "colour", "bars", "blob", "noise"), PAPER, "lrrrrr")


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the stress test")
    parser.add_argument("--drivers", nargs="+", required=True)
    parser.add_argument("--perturb", nargs="+", default=[*PUBLISHED, *OWN], help="by default the published and ours")
    parser.add_argument("--tracks", default="test-40")
    parser.add_argument("--seen", nargs="*", default=[], help="DRIVER=NAME,NAME: perturbations of its training")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Drive, and print the table."""
    args = parsed(argv)
    result = nd.stress(
        args.drivers, args.perturb, args.tracks, control="continuous", folder=args.out,
        resume=(args.out / "rows.jsonl").exists(),
    )  # fmt: skip
    named = (each.split("=", 1) for each in args.seen)
    seen = SEEN | {driver: frozenset(names.split(",")) for driver, names in named}
    text = f"{table(result, seen)}\n\n{paper()}\n"
    (args.out / "shifts.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
