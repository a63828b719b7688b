"""The Neuronal Attention Circuit: layer, parts and plain form."""
