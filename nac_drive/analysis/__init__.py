"""Analysis of drivers: saliency, neurons, attention, wirings and recorded episodes."""
