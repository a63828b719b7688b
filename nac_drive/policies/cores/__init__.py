"""Cores: sequence models with explicit state, by name in `registry.CORES`."""
