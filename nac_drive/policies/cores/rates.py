"""Learning rates of cores in behaviour cloning. Free of torch: configs read them at once."""

from __future__ import annotations

USUAL_RATE = 1e-3
"""Adam's rate where nobody has measured a better one."""
RECOMMENDED: dict[str, float] = {
    "lstm": 1.4e-3, "gru": 3.5e-3, "cfc": 1e-3, "cnn": 1.4e-3, "mha": 1e-3, "ncp": 1e-2, "ncp-full": 1e-2,
    "nac-2k": 1e-2, "nac-learned": 1e-2,
}  # fmt: skip
"""Name in CORES -> the rate that was chosen on validation tracks.

`compare --tune` chose the first five (docs/runs/tuning.json). The last four score higher at 0.01 than at 0.002
(docs/runs/two-rates.json)."""


def recommended_rate(core: str) -> float:
    """Return Adam's rate for a core: the measured one, or the usual one."""
    return RECOMMENDED.get(core, USUAL_RATE)
