"""Files of a message that is being written: named by @path, or long pasted texts."""
