"""The Neuronal Attention Circuit: the layer, its parts, and its plain form."""
