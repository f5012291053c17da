"""Models, their providers and keys: what is configured, how it changes, which client a call has."""
