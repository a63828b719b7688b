"""The arena: drivers on one track, disturbed from a browser."""
