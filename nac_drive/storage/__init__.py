"""Files and folders, written whole and held by one process."""
