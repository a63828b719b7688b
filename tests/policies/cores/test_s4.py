"""S4: the HiPPO matrix in its structured form, and a dense bilinear discretisation of the same system."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from nac_drive.policies.cores.base import Core
from nac_drive.policies.cores.s4 import S4, diagonal_plus_low_rank, hippo_legs
from tests.contracts import CoreContract

N = 6


class TestS4(CoreContract):
    def make_core(self) -> Core:
        return S4(5, 8, state_size=N)


@pytest.fixture
def core() -> S4:
    """A core that is away from its start, where P and B are real and parallel."""
    torch.manual_seed(0)
    core = S4(5, 8, state_size=N).double()
    with torch.no_grad():
        for parameter in (core.low_rank, core.drive, core.frequency, core.log_decay):
            parameter.add_(0.5 * torch.randn_like(parameter))
    return core


def pairs(parameter: torch.Tensor, channel: int) -> np.ndarray:
    """The complex values (N,) of a channel: one of each conjugate pair, then the others."""
    real, imaginary = parameter.detach().numpy()[:, channel]
    return np.concatenate((real + 1j * imaginary, real - 1j * imaginary))


def dense(core: S4, channel: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """r A (N, N), r B (N,) and C (N,) of a channel."""
    rate = np.exp(core.log_rate.detach().numpy()[channel, 0])
    diagonal = pairs(torch.stack((-core.log_decay.exp(), core.frequency)), channel)
    p = pairs(core.low_rank, channel)
    return (
        rate * (np.diag(diagonal) - np.outer(p, p.conj())),
        rate * pairs(core.drive, channel),
        pairs(core.readout, channel),
    )


@pytest.mark.parametrize("size", [2, 6, 32, 64])
def test_the_structured_form_is_the_hippo_matrix(size: int) -> None:
    matrix, drive = hippo_legs(size)
    eigenvalues, p = diagonal_plus_low_rank(size)
    eigenvalues, p = np.concatenate((eigenvalues, eigenvalues.conj())), np.concatenate((p, p))
    assert (p > 0).all()
    assert np.abs(np.real(eigenvalues) + 0.5).max() < 1e-12
    # the basis: eigenvectors of the skew-symmetric part, of the phases that make V* P real and positive
    low_rank = np.sqrt(np.arange(size) + 0.5)
    values, vectors = np.linalg.eig(matrix + np.outer(low_rank, low_rank))
    vectors = vectors[:, [int(np.argmin(np.abs(values - value))) for value in eigenvalues]]
    vectors = vectors * np.exp(1j * np.angle(vectors.conj().T @ low_rank))
    structured = vectors @ (np.diag(eigenvalues) - np.outer(p, p)) @ vectors.conj().T
    np.testing.assert_allclose(structured, matrix, atol=1e-6, rtol=0)
    np.testing.assert_allclose(vectors @ (np.sqrt(2.0) * p), drive, atol=1e-6, rtol=0)


def test_the_hippo_matrix_is_that_of_the_paper() -> None:
    matrix, drive = hippo_legs(3)
    root = np.sqrt([1.0, 3.0, 5.0])
    np.testing.assert_allclose(drive, root)
    expected = [[-1, 0, 0], [-root[1], -2, 0], [-root[2], -root[1] * root[2], -3]]
    np.testing.assert_allclose(matrix, expected)


def test_a_new_core_is_a_dense_hippo_system() -> None:
    """In another basis: the eigenvalues of A and the moments B* A^k B equal the paper's."""
    torch.manual_seed(0)
    core = S4(5, 8, state_size=N).double()
    matrix, drive = hippo_legs(N)
    for channel in range(2):
        ours, push, _ = dense(core, channel)
        rate = float(core.log_rate.detach()[channel].exp())
        np.testing.assert_allclose(np.poly(ours), np.poly(rate * matrix), rtol=1e-5)
        for moment in range(4):
            theirs = rate ** (moment + 2) * drive @ np.linalg.matrix_power(matrix, moment) @ drive
            assert push.conj() @ np.linalg.matrix_power(ours, moment) @ push == pytest.approx(theirs, rel=1e-5)


def test_steps_are_those_of_a_dense_bilinear_rule(core: S4) -> None:
    u, dt = torch.randn(2, 7, 8, dtype=torch.float64), torch.rand(2, 7, dtype=torch.float64)
    dt[0, 2], dt[1, 3] = 0.0, 40.0
    start = tuple(torch.randn_like(part) for part in core.initial_state(2))
    y, (real, imaginary) = core.respond(u, dt, start)
    for row in range(2):
        for channel in range(8):
            matrix, drive, readout = dense(core, channel)
            s = pairs(torch.stack(start)[:, row], channel)
            for t in range(7):
                half = 0.5 * float(dt[row, t])
                left = np.eye(N) - half * matrix
                a_bar = np.linalg.solve(left, np.eye(N) + half * matrix)
                b_bar = np.linalg.solve(left, 2.0 * half * drive)
                s = a_bar @ s + b_bar * float(u[row, t, channel])
                assert y[row, t, channel].item() == pytest.approx(np.real(readout @ s), abs=1e-10)
            np.testing.assert_allclose(pairs(torch.stack((real, imaginary))[:, row], channel), s, atol=1e-10)


def test_the_bilinear_rule_is_of_second_order(core: S4) -> None:
    u, seconds, errors = torch.randn(1, 1, 8, dtype=torch.float64), 0.2, []
    exact = []
    for channel in range(8):
        matrix, drive, readout = dense(core, channel)
        joint = np.zeros((N + 1, N + 1), complex)
        joint[:N, :N], joint[:N, N] = matrix, drive * float(u[0, 0, channel])
        exact.append(np.real(readout @ expm(joint * seconds)[:N, N]))
    for steps in (20, 40, 80):
        dt = torch.full((1, steps), seconds / steps, dtype=torch.float64)
        y, _ = core.respond(u.expand(1, steps, 8), dt, core.initial_state(1))
        errors.append(np.abs(y[0, -1].detach().numpy() - exact).max())
    np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), 2.0, atol=0.1)


def test_without_input_the_state_never_grows(core: S4) -> None:
    with torch.no_grad():
        core.low_rank.mul_(10.0)
        state = tuple(torch.randn(3, 8, N // 2, dtype=torch.float64) for _ in range(2))
        for seconds in (0.02, 1.0, 1e6):
            before = torch.complex(*state).norm(dim=2)
            _, state = core.respond(torch.zeros(3, 1, 8).double(), torch.full((3, 1), seconds).double(), state)
            assert (torch.complex(*state).norm(dim=2) <= before * (1 + 1e-12)).all()


def test_no_time_no_change_of_state(core: S4) -> None:
    state = tuple(torch.randn_like(part) for part in core.initial_state(2))
    _, after = core(torch.randn(2, 3, 5, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64), state)
    torch.testing.assert_close(after, state, atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("state_size", [0, 5, -2])
def test_bad_settings_are_named(state_size: int) -> None:
    with pytest.raises(ValueError, match=f"state_size: must be even and at least 2 .*got {state_size}"):
        S4(5, 8, state_size=state_size)
