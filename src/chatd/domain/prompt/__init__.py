"""What a model is sent: instructions, history, files, compaction, repair; titles."""
