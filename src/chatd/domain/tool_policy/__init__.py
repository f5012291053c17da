"""Which tool calls run, are asked for or denied; how a shell's text is read."""
