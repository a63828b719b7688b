"""Work in several processes, on this machine or on a cluster, and the signals that end it."""
