"""Analysis of drivers: saliency, activity of neurons, attention weights, theory of the NAC layer, wirings."""
