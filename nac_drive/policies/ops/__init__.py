"""Numerical building blocks of several cores."""
