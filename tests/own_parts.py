"""Forget the plug-ins of a test, and their parts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from nac_drive import plugins, registry


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
            for name in set(plugins._loaded) - before[0]:
                del plugins._loaded[name]
            for name in set(sys.modules) - before[1]:
                file = getattr(sys.modules[name], "__file__", None) or ""
                if "pytest-of" in file:  # from the folder of a test
                    del sys.modules[name]
            sys.path[:] = path
            for kind, known in parts.items():
                registry._registries[kind]._parts = known
