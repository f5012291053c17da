"""Models, providers and keys: which of them a call uses, and their administration."""
