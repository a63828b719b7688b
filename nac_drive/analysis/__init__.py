"""Analysis of drivers: saliency, neurons, attention weights, wirings, and episodes with all that is seen of them."""
