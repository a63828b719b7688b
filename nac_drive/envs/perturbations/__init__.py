"""Perturbations by name and level (docs/perturbations.md)."""
