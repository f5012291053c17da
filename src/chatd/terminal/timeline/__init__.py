"""The timeline of the open chat: rows from its state (`row_model`), lines from rows
(`row_lines`, `card`, `markdown_lines`), and the widget (`timeline`)."""
