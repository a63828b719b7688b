"""Wirings of Neuronal Circuit Policies and the graphs that draw them."""
