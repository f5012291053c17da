"""The settings of a process: their schema, `chatd.toml`, the environment, the flags."""
