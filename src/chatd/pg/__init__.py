"""The embedded PostgreSQL: found or copied, created, started, shared by processes, stopped."""
