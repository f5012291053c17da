"""The terminal UI: `chatd chat`. Talks to a server by `chatd.client` alone."""
