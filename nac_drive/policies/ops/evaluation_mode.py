"""The evaluation mode of a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Evaluate a network inside the `with` block.

    Afterwards every module has the mode that it had, also after an error. Modules that a user has frozen by `eval()`
    stay so.

    Args:
        network: The network.
    """
    training = [module for module in network.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
