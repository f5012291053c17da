"""The one error of this package: its message says what is wrong and what to do about it."""


class PgError(Exception):
    """The embedded database cannot be used. The text is meant for the person at the terminal."""
