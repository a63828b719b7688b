"""Forget the plug-ins of a test, and their parts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nac_drive import plugins, registry

MINE = """
from torch import nn

class Mine(nn.Linear):
    def forward(self, x):
        return {factor} * super().forward(x)
"""
"""A file with an own core. Another factor is another code."""


@contextmanager
def forgotten() -> Iterator[None]:
    """Undo plug-ins and additions at the end of the block. The variable is empty at its start."""
    path, parts = list(sys.path), {kind: dict(known._parts) for kind, known in registry._registries.items()}
    before = set(plugins._loaded), set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(plugins.VARIABLE, "")
        try:
            yield
        finally:
            loaded = set(plugins._loaded) - before[0]
            for name in loaded:
                del plugins._loaded[name]
            for name in set(sys.modules) - before[1]:
                file = getattr(sys.modules[name], "__file__", None) or ""
                if "pytest-of" in file or (name in loaded and Path(file).parent == Path(__file__).parent):
                    del sys.modules[name]  # from the folder of a test, or a plug-in beside this file
            sys.path[:] = path
            for kind, known in parts.items():
                registry._registries[kind]._parts = known
