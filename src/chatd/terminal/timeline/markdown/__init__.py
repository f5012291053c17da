"""Markdown and code of models as lines."""
