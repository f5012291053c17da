"""The timeline of the open chat: rows from its state (`rows`), lines from rows (`row_lines`,
`cards`, `markdown`), and the widget (`timeline`)."""
