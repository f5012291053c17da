"""What a chat waits for from a person: approvals, questions, proposed plans; and the answers."""
