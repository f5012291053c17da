"""The settings tree: one typed value, read once."""
