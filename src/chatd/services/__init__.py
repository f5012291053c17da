"""What administrators and users do that is no command to a chat, below the API."""
