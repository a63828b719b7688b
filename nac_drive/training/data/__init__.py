"""From a dataset to batches.

Sequences, features of a frozen encoder, augmentation, and memory.
"""
