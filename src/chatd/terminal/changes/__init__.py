"""What a turn, a chat or the working tree has changed, read from unified diffs."""
