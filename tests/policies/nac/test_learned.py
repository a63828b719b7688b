"""Learned selection: the same layer, with a score that is trained to pick keys."""

from __future__ import annotations

import pytest
import torch

from nac_drive.policies import NAC

T, D_MODEL, HEADS = 12, 8, 2


def make(selection: str, top_k: int = 3) -> NAC:
    torch.manual_seed(0)
    return NAC(D_MODEL, HEADS, selection=selection, top_k=top_k).double()


def inputs() -> torch.Tensor:
    return torch.randn(4, T, D_MODEL, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_it_starts_as_plain_topk() -> None:
    plain, learned = make("topk"), make("learned")
    assert torch.equal(plain(inputs(), window=6), learned(inputs(), window=6))


def test_the_gradient_passes_through_to_the_score_and_changes_no_other() -> None:
    plain, learned, x = make("topk"), make("learned"), inputs()
    for layer in (plain, learned):
        layer(x, causal=True).square().sum().backward()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(learned.get_parameter(name).grad, parameter.grad)
    score = learned.get_parameter("score_weight").grad
    assert score is not None
    assert (score.abs().amax(dim=(1, 2)) > 0).all()


def test_the_gradient_of_the_score_is_that_of_the_logit() -> None:
    """The gradient of a logit a_ij is the gradient of the score of the same pair: dL/dM = sum_ij dL/da_ij q_i k_j^T."""
    layer, x = make("learned"), inputs()
    layer(x).square().sum().backward()
    expected = layer.get_parameter("score_weight").grad
    bias = torch.zeros(4, HEADS, T, 3, dtype=torch.float64, requires_grad=True)
    plain = make("topk")
    logits = plain._solve
    plain._solve = lambda *arguments: logits(*arguments) + bias
    y, attention = plain(x, return_attention=True)
    y.square().sum().backward()
    _, circuit = plain(x, return_circuit=True)
    q, k = circuit.q, circuit.k
    near = k.unsqueeze(2).expand(-1, -1, T, -1, -1)
    chosen = near.gather(3, attention.index.unsqueeze(4).expand(*attention.index.shape, k.shape[3]))  # (B, H, T, K, D)
    assert bias.grad is not None
    torch.testing.assert_close(torch.einsum("bhqk,bhqd,bhqke->hde", bias.grad, q, chosen), expected)


@pytest.mark.slow
def test_it_learns_to_pick_a_key_that_plain_topk_passes_over() -> None:
    """One key of a sequence carries the answer and a mark; this draw's q.k ranks marked keys low, and stays fixed."""
    found = {}
    for selection in ("topk", "learned"):
        torch.manual_seed(2)
        layer, readout = NAC(16, 2, input_size=6, selection=selection, top_k=2), torch.nn.Linear(16, 2)
        trained = [*readout.parameters(), *(p for n, p in layer.named_parameters() if "_gate" not in n)]  # q.k stays
        optimizer = torch.optim.Adam(trained, lr=2e-2)
        generator = torch.Generator().manual_seed(1)
        for step in range(200):
            x = torch.randn(32, 10, 6, generator=generator)
            place = torch.randint(1, 10, (32,), generator=generator)
            answer = torch.randint(0, 2, (32,), generator=generator)
            x[:, :, 4:] = 0.0
            x[:, 0] = 1.0  # the query
            x[torch.arange(32), place, 4] = 2.0
            x[torch.arange(32), place, 5] = 4.0 * answer - 2.0
            logits = readout(layer(x)[:, 0])
            loss = torch.nn.functional.cross_entropy(logits, answer)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step >= 150:
                found[selection] = found.get(selection, 0.0) + float((logits.argmax(1) == answer).float().mean()) / 50
    assert found["topk"] < 0.65, found
    assert found["learned"] > 0.95, found
