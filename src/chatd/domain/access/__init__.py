"""Who may do what: permissions, accounts, shares, secrets as texts, entries of the audit log."""
