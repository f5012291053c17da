"""Connections that stay open both ways: of pages, terminals, runners, and previews of ports."""
