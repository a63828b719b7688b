"""Perturbations of images, frames and dynamics, by name and level (docs/perturbations.md)."""
