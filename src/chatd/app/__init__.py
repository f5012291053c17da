"""Composition: builds every object from the settings, starts and stops them in order."""
