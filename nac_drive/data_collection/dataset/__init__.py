"""Datasets of demonstrations: files, frames, checks and action logs."""
