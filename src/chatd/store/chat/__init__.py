"""Rows of chats: transactions, messages, leases, the journal, usage, runs, shares."""
