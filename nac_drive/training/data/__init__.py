"""From a dataset to batches: sequences, features of a frozen encoder, augmentation, and memory."""
