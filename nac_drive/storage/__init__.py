"""Files and folders: written whole or not at all, read with their schema, held by one process at a time."""
