"""Datasets of demonstrations: files, frames in memory, checks and action logs."""
