"""Screens in which one thing of a list is chosen: a model, a mode, a workspace, a person."""
