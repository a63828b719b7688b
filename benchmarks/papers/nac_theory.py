"""Theorems 2 and 3 of the NAC paper in numbers, and drawings of the two circuits of a layer.

python benchmarks/papers/nac_theory.py                  # one core, under a minute; writes docs/figures
python benchmarks/papers/nac_theory.py --out elsewhere
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from theory import GRID, REGIMES, Coefficient, FrozenError, frozen_error
from torch import Tensor, nn

from nac_drive.analysis.wiring_figure import draw_wiring
from nac_drive.policies import NAC, CircuitRecord, backbone_wiring, sensory_gate_wiring

PHI_0, OMEGA_0 = 0.5, 1.0
PAPER = {  # Table 2: mean and max error, variation of phi and of omega, all in %
    "slow": (1.87, 3.05, 0.50, 0.26),
    "fast": (6.41, 6.50, 2.63, 1.58),
    "step": (6.53, 7.20, 3.51, 2.11),
    "oscillatory": (7.81, 6.90, 8.28, 2.10),
}
BLUE, ORANGE, GREY = "#3b6fb6", "#d1711c", "#5c6670"


def main(out: Path = Path("docs/figures")) -> None:
    """Write nac_theory.md, frozen_coefficients.png, sine.png, wiring_gate.png and wiring_backbone.png into `out`."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    drawings(out)
    text = "# Theorems 2 and 3 of the NAC paper in numbers\n\n"
    text += "Measured by `python benchmarks/papers/nac_theory.py`, which also draws the figures of this folder.\n"
    text += "\n## Frozen coefficients (Theorem 3, Table 2)\n\n" + frozen_coefficients(out)
    text += "\n## sin(x) with one layer (Theorem 2)\n\n" + sine(out)
    (out / "nac_theory.md").write_text(text)
    print(text)


def drawings(out: Path) -> None:
    """The circuits of NAC(64, 8) at the default sparsity of 0.5."""
    gate, backbone = sensory_gate_wiring(64, 64, 0.5, 0), backbone_wiring(16, 64, 0.5, 0)
    for name, wiring, title in (
        ("gate", gate, "Sensory gate (one each for q, k, v): d_model = 64, sparsity 0.5"),
        ("backbone", backbone, "Backbone (one per head, two motor neurons for φ and ω): d_model = 64, sparsity 0.5"),
    ):
        draw_wiring(wiring, title).savefig(out / f"wiring_{name}.png", dpi=75)


# --- Theorem 3 -------------------------------------------------------------------------------------------------------


def coefficients(name: str, horizon: float) -> tuple[Coefficient, Coefficient]:
    """phi rising and omega falling, so that their errors add up, with the variations of the paper's row."""
    _, _, phi, omega = PAPER[name]
    return (
        Coefficient.of_variation(phi, PHI_0, REGIMES[name](), horizon),
        Coefficient.of_variation(omega, OMEGA_0, REGIMES[name](), horizon, sign=-1),
    )


def frozen_coefficients(out: Path) -> str:
    """The table of Theorem 3, and its figure."""
    figure = Figure(figsize=(13.0, 7.5), layout="constrained")
    panels = figure.subplots(3, len(PAPER), sharex=True, sharey="row")
    rows = [
        "| regime | variation of φ / ω | largest move of φ / ω | error on [0, 1]: mean / max "
        "| error on [0, 5]: mean / max | the paper's error: mean / max "
        "| absolute error on [0, 1]: max | half bound at 1 | Theorem 3 at 1 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for column, (name, (paper_mean, paper_max, phi_percent, omega_percent)) in enumerate(PAPER.items()):
        results = []
        for horizon in (1.0, 5.0):
            phi, omega = coefficients(name, horizon)
            results.append(frozen_error(phi, omega, np.linspace(0.0, horizon, GRID)))
        phi, omega = coefficients(name, 1.0)
        unit, longer = results
        moves = [100.0 * np.abs(c(unit.t) / c(np.zeros(1)) - 1.0).max() for c in (phi, omega)]
        rows.append(
            f"| {name} | {phi_percent:.2f} / {omega_percent:.2f} % | {moves[0]:.1f} / {moves[1]:.1f} % "
            f"| {unit.percent.mean():.2f} / {unit.percent.max():.2f} % "
            f"| {longer.percent.mean():.2f} / {longer.percent.max():.2f} % | {paper_mean:.2f} / {paper_max:.2f} % "
            f"| {unit.error.max():.5f} | {unit.sharp_bound[-1]:.4f} | {unit.bound[-1]:.4f} |"
        )
        draw_regime(panels[:, column], name, phi, omega, unit)
    for panel, label in zip(panels[:, 0], ("coefficient / initial value", "logit a(t)", "absolute error"), strict=True):
        panel.set_ylabel(label)
    figure.suptitle("Freezing φ and ω at their initial values: what the closed form misses", fontsize=12)
    figure.savefig(out / "frozen_coefficients.png", dpi=90)
    return "\n".join(rows) + (
        f"\n\nφ(0) = {PHI_0}, ω(0) = {OMEGA_0}, a(0) = 0; φ rises and ω falls, so that both err to the same side.\n"
        "Variation: standard deviation over the window / mean over it. Largest move: from the initial value, on\n"
        f"[0, 1]. Error: |varying - frozen| / |varying|, {GRID - 1:,} times after 0. Half bound: (Lφ + C Lω) t² / 2.\n"
    )


def draw_regime(panels: np.ndarray, name: str, phi: Coefficient, omega: Coefficient, result: FrozenError) -> None:
    """One column of the figure: coefficients, both logits, error and bounds."""
    t = result.t
    panels[0].set_title(name)
    panels[0].plot(t, phi(t) / PHI_0, color=BLUE, label="φ / φ(0)")
    panels[0].plot(t, omega(t) / OMEGA_0, color=ORANGE, label="ω / ω(0)")
    panels[1].plot(t, result.varying, color=BLUE, label="varying (integrated)")
    panels[1].plot(t, result.frozen, color=ORANGE, linestyle="--", label="frozen (closed form)")
    panels[2].semilogy(t[1:], result.error[1:], color=BLUE, label="error")
    panels[2].semilogy(t[1:], result.sharp_bound[1:], color=GREY, linestyle="--", label="(Lφ + C Lω) t² / 2")
    panels[2].semilogy(t[1:], result.bound[1:], color=GREY, label="Theorem 3")
    panels[2].set_ylim(1e-8, 30.0)
    panels[2].set_xlabel("t")
    for panel, place in zip(panels, ("upper left", "upper left", "lower right"), strict=True):
        panel.grid(alpha=0.3)
        if name == "slow":
            panel.legend(fontsize=8, loc=place)


# --- Theorem 2 -------------------------------------------------------------------------------------------------------


class Sine(nn.Module):
    """x -> NAC -> linear readout. The only feature is x / pi; nothing precedes the layer.

    Alone, each x is a sequence of length 1, as in the paper's proof. Together, each x attends to a fixed sequence of
    x's, the training points, all of them kept.
    """

    def __init__(self, context: Tensor | None) -> None:
        super().__init__()
        self.layer = NAC(16, 4, input_size=1, sparsity=0.0, selection="pairwise")
        self.readout = nn.Linear(16, 1)
        self.context = None if context is None else self.feature(context)

    def feature(self, x: Tensor) -> Tensor:
        return (x / math.pi).view(1, -1, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.context is None:
            y = self.layer(self.feature(x).transpose(0, 1))  # (N, 1, d)
        else:
            y = self.layer(self.feature(x), context=self.context)  # (1, N, d)
        assert isinstance(y, Tensor)
        return self.readout(y).flatten()

    def attention_ratio(self, x: Tensor) -> tuple[float, Tensor]:
        """The mean over queries and heads of largest / smallest weight; the output with uniform weights."""
        answer = self.layer(self.feature(x), context=self.context, return_circuit=True)
        circuit = answer[1]
        assert isinstance(circuit, CircuitRecord)
        alpha, t = circuit.attention.alpha, circuit.attention.t
        uniform = (t / t.shape[3]) @ circuit.v  # (1, H, N, D)
        y = self.readout(self.layer.out(uniform.transpose(1, 2).flatten(2))).flatten()
        return float((alpha.amax(3) / alpha.amin(3)).mean()), y


def fit(together: bool, train: Tensor) -> tuple[Sine, float]:
    """Least squares by 400 steps of Adam, then L-BFGS, in float64; seconds it took."""
    torch.manual_seed(0)
    model = Sine(train if together else None).double()
    started = time.perf_counter()

    def loss() -> Tensor:
        value = (model(train) - train.sin()).square().mean()
        model.zero_grad()
        value.backward()
        return value.detach()

    adam = torch.optim.Adam(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 400)
    for _ in range(400):
        loss()
        adam.step()
        schedule.step()
    lbfgs = torch.optim.LBFGS(
        model.parameters(),
        max_iter=1000,
        history_size=50,
        tolerance_grad=1e-12,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )
    lbfgs.step(loss)  # type: ignore[arg-type]
    return model, time.perf_counter() - started


def sine(out: Path) -> str:
    """The table of Theorem 2, and its figure."""
    limit = 2.0 * math.pi
    train = torch.linspace(-limit, limit, 65, dtype=torch.float64)
    x = torch.linspace(-limit, limit, 2001, dtype=torch.float64)
    figure = Figure(figsize=(11.0, 5.5), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=[2, 1])
    rows = ["| tokens | parameters | max error | RMS error | seconds |", "|---|---:|---:|---:|---:|"]
    notes = ""
    for column, (label, together) in enumerate(
        (("each x a sequence of length 1", False), ("all x in one sequence, pairwise", True))
    ):
        model, seconds = fit(together, train)
        with torch.no_grad():
            y = model(x)
            residual = y - x.sin()
            if together:
                ratio, uniform = model.attention_ratio(x)
                rms = float((uniform - x.sin()).square().mean().sqrt())
                notes = (
                    f"\nIn one sequence, the largest weight of a query is on average {ratio:.1f} times its smallest; "
                    f"with every weight\nreplaced by 1/65 the RMS error becomes {rms:.2f}, so attention takes part.\n"
                )
        size = sum(parameter.numel() for parameter in model.parameters())
        rms = float(residual.square().mean().sqrt())
        rows.append(f"| {label} | {size:,} | {residual.abs().max():.5f} | {rms:.5f} | {seconds:.0f} |")
        top, bottom = panels[:, column]
        top.set_title(label)
        top.plot(x, x.sin(), color=GREY, linewidth=3.0, alpha=0.5, label="sin x")
        top.plot(x, y, color=BLUE, linewidth=1.2, label="one NAC layer")
        top.plot(train, train.sin(), ".", color=ORANGE, markersize=4, label="training points")
        bottom.plot(x, 1000.0 * residual, color=BLUE, linewidth=1.0)
        bottom.set_xlabel("x")
        for panel in (top, bottom):
            panel.grid(alpha=0.3)
    panels[0, 0].legend(fontsize=8, loc="upper right")
    panels[0, 0].set_ylabel("y")
    panels[1, 0].set_ylabel("1000 residual")
    figure.suptitle("sin x on [-2π, 2π] with one NAC layer of 16 units and 4 heads", fontsize=12)
    figure.savefig(out / "sine.png", dpi=90)
    return "\n".join(rows) + "\n" + notes


if __name__ == "__main__":
    tyro.cli(main)
