"""A script of a user: functions and results."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import numpy as np

import nac_drive as nd


def returns(evaluation: nd.Evaluation) -> list[float]:
    return [row.episode_return for row in evaluation.rows]


def main(folder: Path) -> None:
    env = nd.EnvConfig(control="discrete", max_steps=200, perturb="gap:1")
    data: nd.Demonstrations = nd.collect(
        folder / "demos", "expert", env=env, seeds=[0, 1], noise=nd.NoiseConfig(0.1), workers=0
    )
    frames: int = sum(row["length"] for row in data.rows)
    config = nd.TrainConfig(
        driver=nd.DriverConfig("lstm", encoder="compact", d_model=32),
        data=nd.DataConfig(sequence_length=16, batch_size=4),
        optim=nd.OptimConfig(1e-3, freeze_encoder_from="expert"),
        validation=nd.EvalConfig("val-1"),
        epochs=2,
    )
    best: Path = nd.train(config, data, folder / "run", progress=lambda event: print(event.job, event.done))
    nd.dagger(nd.DaggerConfig(rounds=1), folder / "dagger")
    nd.ppo(nd.PPOConfig(total_timesteps=10_000), folder / "ppo")

    driver: nd.Driver = nd.load_driver(best)
    expert = nd.evaluate("expert", "test-2", env=env)
    mine = nd.evaluate(driver, [900_000], name="mine", expert="expert", baseline=expert, crash="terminate")
    assert_type(mine.summary.return_mean, float)
    assert_type(mine.summary.return_sd, float | None)
    assert_type(mine.summary.agreement, float | None)
    assert_type(mine.rows[0].crashes, int | None)
    assert_type(mine.rows[0].crash_kinds, list[str] | None)
    assert_type(mine.rows[0].lap_finished, bool | None)
    assert_type(mine.rows[0].steering_mae, float | None)
    if mine.verdict is not None:
        verdict: nd.Verdict = mine.verdict
        assert_type(verdict.sentence, str)
        assert_type(mine.verdict.tracks_needed, int | None)
        assert_type(mine.verdict.difference.low, float)
    print(frames, returns(mine))

    comparison: nd.Comparison = nd.compare(
        ["lstm", "cnn"], data, "test-2", folder / "compare", config=config, baseline="cnn"
    )
    for ranked in comparison.drivers:
        assert_type(ranked.summary.driver, str)
        assert_type(ranked.summary.completion, float | None)
        assert_type(ranked.parameters, int | None)
    print(comparison.headline, comparison.failures)

    stressed: nd.StressResult = nd.stress([best, "expert"], ["gap"], "test-2", crash="intervene")
    cell = stressed.cells["expert", None]
    assert_type(cell.return_mean.mean, float)
    print(stressed.verdicts)

    episode: nd.Episode = nd.watch(best, video=folder / "episode.mp4")
    assert_type(episode.episode_return, float)
    inspection: nd.Inspection = nd.inspect(best, folder=folder / "seen")
    print(inspection.page.read_text(), inspection.recordings[0].frames.shape)

    simulator = nd.make_env(env)
    steps: list[nd.Step] = []
    nd.rollout(simulator, driver, 5, subscribers=[steps.append])
    with nd.worker_pool(2) as pool:
        both: list[nd.Evaluation] = nd.evaluate_with_baseline(best, pool=pool)
    print(len(steps), len(both), np.mean(returns(both[0])), nd.track_seeds("test-2")[0], sorted(nd.CORES))
    nd.export(driver, folder / "driver.onnx")


if __name__ == "__main__":
    main(Path("results"))
