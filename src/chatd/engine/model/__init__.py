"""Calls of models: which model answers, what it may spend, its attempt, what is recorded of it."""
