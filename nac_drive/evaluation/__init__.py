"""Closed-loop evaluation: metrics, statistics and videos."""
