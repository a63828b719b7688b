"""Measurements that several processes share and that can be interrupted: rows, tables, figures and pages."""
