"""The arena: drivers on one track under one clock, watched and disturbed from a browser."""
