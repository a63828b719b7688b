"""The privileged controller, its racing line and the search for its numbers."""
