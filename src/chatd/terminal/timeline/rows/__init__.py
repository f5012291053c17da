"""Rows: what a chat shows, from top to bottom, as plain data made from its state."""
