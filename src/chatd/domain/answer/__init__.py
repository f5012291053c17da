"""What a model said: assembled from events, cut short, as tool calls and their outputs, as rows."""
