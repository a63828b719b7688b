"""Drivers under stress: every driver under every perturbation, level by level, on the same tracks."""
