"""The privileged controller, its racing line and its search."""
