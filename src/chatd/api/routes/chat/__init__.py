"""Routes of a chat: its messages, answers, versions, copies, shares and links."""
