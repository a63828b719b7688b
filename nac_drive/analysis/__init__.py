"""Analysis of the NAC layer: attention weights, theory, wirings."""
