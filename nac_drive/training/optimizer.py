"""AdamW, with another rate for the encoder if asked for."""

from __future__ import annotations

import torch

from nac_drive.policies import Driver

_FACTOR = "factor"
"""Key of a group of parameters: its rate as a multiple of the optimizer's."""


def adam(
    driver: Driver, rate: float, encoder_rate: float | None = None, weight_decay: float = 0.0
) -> torch.optim.AdamW:
    """Return AdamW over all weights of a driver.

    Without decay it is Adam.

    Args:
        driver: The driver.
        rate: The learning rate.
        encoder_rate: The rate of the encoder's weights; None for `rate`.
        weight_decay: An update takes this fraction of the rate off every weight.
    """
    if encoder_rate is None:
        return torch.optim.AdamW(driver.parameters(), rate, weight_decay=weight_decay)
    encoder = list(driver.encoder.parameters())
    rest = [parameter for name, parameter in driver.named_parameters() if not name.startswith("encoder.")]
    groups = [{"params": encoder, _FACTOR: encoder_rate / rate}, {"params": rest, _FACTOR: 1.0}]
    optimizer = torch.optim.AdamW(groups, rate, weight_decay=weight_decay)
    set_rate(optimizer, rate)
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate. The encoder's is scaled by the same factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(_FACTOR, 1.0)
