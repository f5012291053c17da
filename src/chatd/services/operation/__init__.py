"""What the operator of a deployment does: backups, keys, settings at run time, diagnosis."""
