"""Rows of users: accounts, groups, credentials, settings, skills, shares, links, the audit log."""
