"""One core of every class. Others of its class differ in settings alone."""

from __future__ import annotations

from nac_drive.policies import CORES

FIRST_OF_CLASS = sorted({factory.core: name for name, factory in reversed([*CORES.items()])}.values())
"""Cores for tests of every core that cost seconds; `make test-all` runs them with all."""
