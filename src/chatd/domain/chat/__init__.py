"""A chat: its row, states, messages and commands, and the transitions between states."""
