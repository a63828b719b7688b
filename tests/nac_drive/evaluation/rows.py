"""Rows of evaluations whose numbers are chosen by hand."""

from __future__ import annotations

from typing import Any

from nac_drive.evaluation.results import EpisodeResult

CONDITIONS = {"driver": "one", "seed": 0, "crash_mode": "ignore", "perturbation": None, "run": None}


def row(seed: int = 0, **values: Any) -> EpisodeResult:
    """A finished lap without a crash; `values` change conditions and metrics."""
    metrics = {
        "episode_return": 900.0, "solved": values.get("episode_return", 900.0) >= 900, "length": 500,
        "completion": 1.0, "lap_finished": True, "lap_time": 10.0,
        "crashes": 0, "crash_kinds": [], "first_crash_time": None, "interventions": 0, "autonomy": 1.0,
        "off_road_events": 0, "off_road_fraction": 0.0, "wrong_way": 0.0, "recovered": None, "driving_score": 100.0,
        "lateral_mean": 0.1, "lateral_rms": 0.1,
        "lateral_p95": 0.2, "heading_rms": 0.1, "steering_rate_rms": 1.0, "steering_reversals": 2.0, "agreement": None,
        "steering_mae": None, "steering_mse": None,
        "latency_ms": 1.0,
    }  # fmt: skip
    return EpisodeResult.from_dict({**CONDITIONS, **metrics, "seed": seed, **values})
