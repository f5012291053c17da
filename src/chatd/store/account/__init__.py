"""Rows of users: accounts, groups, credentials, settings, skills, the audit log."""
