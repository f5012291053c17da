"""The timeline of the open chat: rows from its state, lines from rows, and the widget."""
