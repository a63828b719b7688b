"""Comparison of several drivers: runs, ranking, tables and figures."""
