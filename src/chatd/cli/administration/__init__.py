"""Commands of administrators, over the API."""
