"""Learning rates of cores in behaviour cloning. Free of torch: configs read them at once."""

from __future__ import annotations

USUAL_RATE = 1e-3
"""Adam's rate where nobody has measured a better one."""
RECOMMENDED: dict[str, float] = {
    "lstm": 2e-3, "gru": 7e-4, "cfc": 1e-3, "cnn": 1e-2, "mha": 1e-3, "transformer": 1e-3, "mtan": 5e-3, "ct-gru": 5e-3,
    "nac-sharp": 5e-3, "nac-exact": 1e-2, "ltc": 5e-3,
}  # fmt: skip
"""Name in CORES -> the rate that `compare --tune` chose on validation tracks (docs/runs/tuning.json)."""


def recommended_rate(core: str) -> float:
    """Return Adam's rate for a core: the measured one, or the usual one."""
    return RECOMMENDED.get(core, USUAL_RATE)
