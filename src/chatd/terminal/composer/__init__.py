"""Writing a message: the text box, its commands, its files, and the queue."""
