"""Statements for what a deployment is connected to and what runs in it on its own."""
