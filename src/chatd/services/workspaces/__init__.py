"""Workspaces, their templates and runners: who may have them, how they are built and reached."""
