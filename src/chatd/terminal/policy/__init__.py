"""The tool policy of a chat: which calls run, which a person approves, which never run."""
