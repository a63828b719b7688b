"""Tables of the papers, measured again: a protocol file each, one command, a page with both figures side by side."""
