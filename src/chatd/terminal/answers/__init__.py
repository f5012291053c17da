"""What a chat waits for from a person: approvals, questions, proposed plans; and the answers.

Imports nothing here: commands use the rules of this package and must not load textual.
"""
