"""The departures from the published NAC code, and what each changes in numbers.

The published code (github.com/itxwaleedrazzaq/neuronal_attention_circuit) is TensorFlow and has no license file, so it
is neither copied nor run here. Each measurement emulates one behaviour of it on a layer of ours with the same weights,
and compares. docs/differences.md lists all departures.

python benchmarks/layer/published_differences.py                  # one core, seconds; writes docs/figures
python benchmarks/layer/published_differences.py --out elsewhere
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor

from nac_drive.policies import NAC, AttentionRecord, CircuitRecord
from nac_drive.policies.nac.logits import MODES, OMEGA_FLOOR

D_MODEL, HEADS, T = 64, 8, 32


Row = tuple[str, str, str]


def main(out: Path = Path("docs/figures")) -> None:
    """Write published_differences.md into `out`."""
    torch.set_num_threads(1)
    text = "# Departures from the published code, in numbers\n\n"
    text += "Measured by `python benchmarks/layer/published_differences.py`.\n\n"
    text += "| what | as published (emulated) | here |\n|---|---:|---:|\n"
    for question in (one_step, masked_logits, scanned_gate, euler_steps, mislabelled_mode, concatenated_pairs):
        torch.manual_seed(0)
        text += "".join("| " + " | ".join(row) + " |\n" for row in question())
    text += f"\n| gradient norm, by output and length | {' | '.join(PARTS)} |\n|---|" + "---:|" * len(PARTS) + "\n"
    for output in ("riemann", "quadrature"):
        for length in (1, T):
            torch.manual_seed(0)
            norms = gradient_norms(output, length)
            text += f"| {output}, T = {length} | " + " | ".join(f"{norm:.1e}" for norm in norms) + " |\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / "published_differences.md").write_text(text)
    print(text)


def make(**arguments: str | int) -> NAC:
    """A layer whose every weight, scales and shifts included, is away from its initial value."""
    layer = NAC(D_MODEL, HEADS, selection="pairwise", **arguments)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def attention_of(layer: NAC, x: Tensor, causal: bool = False, valid: Tensor | None = None) -> AttentionRecord:
    detail = layer(x, causal=causal, valid=valid, return_attention=True)[1]
    assert isinstance(detail, AttentionRecord)
    return detail


@torch.no_grad()
def one_step() -> list[Row]:
    """The backbone for one step from a zero state, and settled for three."""
    layer = make()
    circuit = layer(torch.randn(1, T, D_MODEL), return_circuit=True)[1]
    assert isinstance(circuit, CircuitRecord)
    cell = layer.backbone
    found = []
    for motor in circuit.neurons["motor"][[0, -1]]:  # (B, H, Tq, K, 2) after the first step and after the last
        y = motor * cell.out_scale[:, :, None] + cell.out_shift[:, :, None]
        phi, omega = torch.sigmoid(y[..., 0]), F.softplus(y[..., 1]) + OMEGA_FLOOR
        spreads = [float(value.flatten(2).std(dim=2).mean()) for value in (phi, omega)]
        weights = [MODES[mode](phi, omega, circuit.attention.t, 0).softmax(dim=3) for mode in ("steady", "exact")]
        found.append([*spreads, *(float((alpha.amax(3) / alpha.amin(3)).mean()) for alpha in weights)])
    labels = (
        "standard deviation of φ over the pairs of a head",
        "standard deviation of ω over the pairs of a head",
        "largest / smallest attention weight of a query, mode steady",
        "largest / smallest attention weight of a query, mode exact",
    )
    return [(label, f"{one:.2f}", f"{settled:.2f}") for label, one, settled in zip(labels, *found, strict=True)]


@torch.no_grad()
def masked_logits() -> list[Row]:
    """Masks by multiplying logits with 0, which is a logit like another, and by exclusion.

    The published top-k layer multiplies. Its gather raises an error before that, so this is the rule, not a run.
    """
    layer = make()
    x, causal = torch.randn(1, T, D_MODEL), torch.ones(T, T, dtype=torch.bool).tril()
    a = attention_of(layer, x).a
    multiplied = (a * causal).softmax(dim=3)
    published, here = (
        (alpha * ~causal).sum(dim=3) for alpha in (multiplied, attention_of(layer, x, causal=True).alpha)
    )
    padding = attention_of(layer, x, valid=torch.zeros(1, T, dtype=torch.bool)).alpha
    return [
        (f"causal mask, T = {T}: weight on the future, mean over queries", _percent(published), _percent(here)),
        ("the same, first query", _percent(published[..., 0]), _percent(here[..., 0])),
        ("nothing but padding: weight on it", _percent((0.0 * a).softmax(dim=3).sum(3)), _percent(padding.sum(3))),
    ]


def _percent(fraction: Tensor) -> str:
    return f"{100.0 * float(fraction.mean()):.0f} %"


PARTS = ("W of q", "W of k", "W of v", "backbone", "t_a, t_b")


def gradient_norms(output: str, length: int) -> list[float]:
    """Norms of the gradient of a loss on the layer's output, by `PARTS`."""
    layer = make(output=output)
    layer(torch.randn(8, length, D_MODEL)).square().mean().backward()
    context = layer.context_gate.weight.grad  # (F, 2, d): keys, values
    assert context is not None
    parts = (
        [layer.query_gate.weight.grad],
        [context[:, 0]],
        [context[:, 1]],
        [parameter.grad for parameter in layer.backbone.parameters()],
        [layer.time_weight.grad, layer.time_bias.grad],
    )
    return [float(torch.stack([g.norm() for g in part if g is not None]).norm()) for part in parts]


@torch.no_grad()
def scanned_gate() -> list[Row]:
    """The query gate as a cell that is scanned over 1024 steps with a state it never reads, and as one map."""
    layer, x = make(), torch.randn(1, 1024, D_MODEL)
    gate = layer.query_gate
    synapses, bias = (gate.weight * gate.mask)[:, 0], gate.bias[0]
    recurrent = torch.zeros(D_MODEL, D_MODEL)  # W_rec * M_rec: no synapses among sensory neurons

    def scan() -> Tensor:
        state, outputs = torch.zeros(1, D_MODEL), []
        for u in x.unbind(1):
            u = u * gate.in_scale[:, 0, 0] + gate.in_shift[:, 0, 0]
            state = torch.tanh(state @ recurrent + u @ synapses + bias)
            outputs.append(state * gate.out_scale[0] + gate.out_shift[0])
        return torch.stack(outputs, dim=1)

    difference = float((scan() - gate(x)[:, :, 0]).abs().max())
    return [
        (
            f"one sensory gate over T = 1024 (results differ by {difference:.0e} at most)",
            f"{milliseconds(scan):.0f} ms",
            f"{milliseconds(lambda: gate(x)):.2f} ms",
        )
    ]


def euler_steps() -> list[Row]:
    """Five Euler steps of 0.5 whatever t, as published, and steps over t = 1 that keep omega dt below 1."""
    rows = []
    for omega in (1.0, 3.0, 5.0):
        a, lowest, highest = 0.0, 0.0, 0.0
        for _ in range(5):
            a += 0.5 * (1.0 - omega * a)
            lowest, highest = min(lowest, a), max(highest, a)
        arguments = [torch.tensor(value, dtype=torch.float64) for value in (1.0, omega, 1.0)]
        ours, exact = (float(MODES[mode](*arguments, 6)) for mode in ("euler", "exact"))  # type: ignore[call-arg]
        rows.append(
            (
                f"Euler's logit over a* at t = 1, ω = {omega:.0f}; exact: {exact * omega:.3f}",
                f"{a * omega:.3g} (on the way {lowest * omega:.3g} to {highest * omega:.3g})",
                f"{ours * omega:.3f}",
            )
        )
    return rows


@torch.no_grad()
def mislabelled_mode() -> list[Row]:
    """Distance of Euler's logits from exact ones: on CarRacing the published NAC_Euler has mode = "exact"."""
    detail = attention_of(make(), torch.randn(1, T, D_MODEL))
    euler = MODES["euler"](detail.phi, detail.omega, detail.t, 6)
    difference = ((euler - detail.a).abs() / detail.a).flatten()
    return [
        (
            "Euler's logits (6 steps) against the exact ones: mean / largest relative difference",
            "0 / 0",
            f"{100 * float(difference.mean()):.1f} / {100 * float(difference.max()):.1f} %",
        )
    ]


@torch.no_grad()
def concatenated_pairs() -> list[Row]:
    """The backbone's first layer on 256 x 256 pairs: of [q; k] concatenated, and W_q q + W_k k added."""
    layer, length = make(), 256
    q, k = torch.randn(2, 1, HEADS, length, layer.head_size)  # (1, H, T, D) each
    weight, bias = layer.backbone.input_map()  # (H, 2D, E), (H, 1, E)
    weight_q, weight_k = weight.split(layer.head_size, dim=1)

    def concatenated() -> Tensor:
        shape = (1, HEADS, length, length, layer.head_size)
        u = torch.cat(
            (
                q.unsqueeze(3).expand(shape),
                k.unsqueeze(2).expand(shape),
            ),
            dim=4,
        )  # (1, H, T, T, 2D)
        return (u.flatten(2, 3) @ weight + bias).unflatten(2, (length, length))

    def added() -> Tensor:
        return (q @ weight_q + bias).unsqueeze(3) + (k @ weight_k).unsqueeze(2)

    difference = float((concatenated() - added()).abs().max())
    assert difference < 1e-4, difference
    return [
        (
            f"first layer of the backbone, all pairs, T = {length}",
            f"{milliseconds(concatenated):.0f} ms",
            f"{milliseconds(added):.0f} ms",
        )
    ]


def milliseconds(run: Callable[[], object]) -> float:
    """The median of seven runs after one that is not counted."""
    run()
    times = []
    for _ in range(7):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return 1000.0 * statistics.median(times)


if __name__ == "__main__":
    tyro.cli(main)
