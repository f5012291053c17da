"""Cards: how the calls of each tool are shown."""
