"""Wirings of Neuronal Circuit Policies and their graphs."""
