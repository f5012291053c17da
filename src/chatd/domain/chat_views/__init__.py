"""What people see of a chat: events, differences, lists, search, export and import."""
